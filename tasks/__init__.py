"""The Prefect tasks of segue. Each task calls one engine function, publishes the result, and returns a record."""
