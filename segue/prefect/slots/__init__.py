"""Slots of scheduled retrainings on the Prefect server: their schedule, turns, questions, events and recovery."""
