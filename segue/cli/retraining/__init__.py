"""Commands of scheduled retraining."""
