"""Checks of a run's pools, from the facts that the Prefect server shows."""
