"""Decides when a run leaves spot.

The package is pure: time, history and prices are arguments, and the result is a decision.
"""
