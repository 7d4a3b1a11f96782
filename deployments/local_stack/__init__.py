"""A whole Prefect on this machine: what `segue run` starts when no server is configured."""
