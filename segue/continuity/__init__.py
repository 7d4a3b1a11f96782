"""Did this resume really continue the run? Fingerprints, witness rows, verdicts and the drill."""
