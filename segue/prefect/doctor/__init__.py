"""The doctor's checks of the Prefect server: the list of checks, and the facts that they read."""
