"""The Prefect tasks. Each task calls one engine function, publishes the result, and returns a record."""
