"""Fixtures that commands share with the rooms they show: a trained run, and weights made outside of segue."""

from tests.curves.conftest import resumed
from tests.interop.conftest import state, weights

__all__ = ["resumed", "state", "weights"]
