"""A Kubernetes API on this machine, for the real prefect-kubernetes worker: each pod's command is a local process."""
