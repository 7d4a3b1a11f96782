"""`python -m benchmarks chaos`: trains runs on a complete local Prefect while services, processes and stores fail."""
