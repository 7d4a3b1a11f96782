"""The time of a local Prefect from a request for a flow run to its process, and the number of refused requests."""
