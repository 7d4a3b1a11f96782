"""Decides whether a resume continued the run, with fingerprints, witness rows and verdicts."""
