"""Commands about what a run will cost, or has cost."""
