"""Judges the machines of a run by the observations of attempts."""
