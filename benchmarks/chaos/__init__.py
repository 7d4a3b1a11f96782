"""`python -m benchmarks chaos`: runs on a whole local Prefect while everything around them fails."""
