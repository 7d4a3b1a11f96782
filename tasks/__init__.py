"""Prefect doorways: each task names itself, calls one engine function, publishes, and returns a record."""
