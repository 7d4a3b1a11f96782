"""Fixtures that commands share with the rooms they show: a trained run, and weights made outside of segue."""

import pytest

from tests.cli.test_errors import closed_port
from tests.curves.conftest import resumed
from tests.interop.conftest import state, weights
from tests.support.command import Desk

__all__ = ["closed_port", "resumed", "state", "weights"]


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys) -> Desk:
    """An empty folder in which commands run within the test's process."""
    (tmp_path / "desk").mkdir()
    return Desk(tmp_path / "desk", monkeypatch, capsys)
