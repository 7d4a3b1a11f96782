"""Scheduled retraining: a window of data, the check of the window, evaluation, and the log of models in service."""
