"""Programs: the objects that a training script tracks, and the numbers that it reports, while an attempt trains it."""
