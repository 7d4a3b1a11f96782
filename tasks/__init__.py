"""Prefect tasks: each calls one engine function, publishes the result, and returns a record."""
