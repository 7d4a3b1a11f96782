"""The connection to Prefect. It has the requests of runs to the server, the checks of the pools, and the view of runs
in the UI."""
