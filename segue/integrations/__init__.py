"""Training frameworks and trackers. Each module needs its framework, and nothing else in segue does."""
