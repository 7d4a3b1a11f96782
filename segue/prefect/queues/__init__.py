"""The waits of attempts on the Prefect server: for slots of their pools, and for the start of their flow runs."""
