"""Shows a run in the Prefect UI: states, pages, progress, events and log lines."""
