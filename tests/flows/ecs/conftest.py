"""Moto's server, as the store tests start it."""

from tests.stores.conftest import aws_keys, moto_url

__all__ = ["aws_keys", "moto_url"]
