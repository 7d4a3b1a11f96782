"""Scheduled retraining: a window of data, its check, evaluation, and the log of models in service."""
