"""Pools of a run, as a Prefect server shows them, and whether segments can run there."""
