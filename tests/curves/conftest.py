"""One trained run for all tests of curves in a process."""

from __future__ import annotations

import pytest

from tests.support.resumed_run import Resumed, train


@pytest.fixture(scope="session")
def resumed(fork_server, tmp_path_factory) -> Resumed:
    return train(fork_server, tmp_path_factory.mktemp("resumed") / "store")
