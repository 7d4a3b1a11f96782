"""Fixtures that commands share with the rooms they show: a trained run, and weights made outside of segue."""

from tests.cli.test_errors import closed_port
from tests.curves.conftest import resumed
from tests.interop.conftest import state, weights

__all__ = ["closed_port", "resumed", "state", "weights"]
