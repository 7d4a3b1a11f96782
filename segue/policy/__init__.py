"""Decides when a run leaves spot.

The package is pure: time, history and prices come in as arguments, and a decision goes out.
"""
