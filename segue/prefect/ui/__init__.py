"""What the Prefect UI shows of a run: states, pages, progress, events and log lines."""
