"""Connects the slots of scheduled retrainings to the Prefect server: schedule, turns, questions, events, recovery."""
