"""The demos: the main job, and scheduled retraining, on real data. `python -m examples.demo`, or `make demo`."""
