"""Scheduled retraining: a window of data, the gate, the evaluation, and the log of models in service."""
