"""What attempts wait for on the Prefect server: slots of their pools, and the start of their flow runs."""
