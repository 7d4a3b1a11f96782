"""A trained run for the tests of trackers."""

from tests.curves.conftest import resumed

__all__ = ["resumed"]
