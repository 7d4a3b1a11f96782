"""Prefect: what a run asks of its server and its pools, and what people see of the run in its UI."""
