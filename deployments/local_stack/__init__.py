"""A complete local Prefect installation, which `segue run` starts if no server is configured."""
