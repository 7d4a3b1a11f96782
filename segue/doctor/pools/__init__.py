"""Checks of a run's work pools, from the data of the Prefect server."""
