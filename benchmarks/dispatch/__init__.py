"""How long a local Prefect takes from a request for a flow run to its process, and how many requests it refuses."""
