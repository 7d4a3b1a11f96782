"""Tasks of scheduled retraining."""
