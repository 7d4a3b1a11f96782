"""Connects segue to Prefect: requests to the server, checks of the pools, and the view of runs in the UI."""
