"""Programs: what a training script tracks and reports through its session, while an attempt trains it."""
