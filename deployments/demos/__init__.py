"""`segue demo`: the main job, and scheduled retraining, on real data."""
