"""Arrival delay of the flights that left New York City in 2013: a small net with embeddings, dropout, batch norm."""

from examples.flights.recipe import build

__all__ = ["build"]
