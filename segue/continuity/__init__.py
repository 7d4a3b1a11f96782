"""Decides whether a resume continued the run: fingerprints, witness rows, verdicts and the drill."""
