"""Scheduled retraining on flights: a file arrives each month, and a better model takes the place of the one before."""
