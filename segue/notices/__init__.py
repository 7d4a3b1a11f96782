"""Notices of an end: sources set a flag, and the training loop reads it at its safe points."""
