"""Detects causes of a slot besides its schedule and a person: new data, and drift of the data in service."""
