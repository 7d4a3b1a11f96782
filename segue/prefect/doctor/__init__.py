"""The doctor's checks of the Prefect server: what they read, and the list of them."""
