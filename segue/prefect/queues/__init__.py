"""The waits of attempts on Prefect: the wait for a slot of a pool, and the start of the flow run."""
