"""Fixtures that the doctor's tests share with those of the commands."""

from tests.cli.conftest import desk

__all__ = ["desk"]
