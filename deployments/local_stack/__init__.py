"""A complete local Prefect, which `segue run` starts if no server is configured."""
