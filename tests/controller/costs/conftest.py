"""Moto's server, which also stands in for EC2."""

from tests.stores.conftest import aws_keys, moto_url

__all__ = ["aws_keys", "moto_url"]
