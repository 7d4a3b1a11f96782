"""Prefect: the requests of runs to its server, the checks of its pools, and the view of runs in its UI."""
