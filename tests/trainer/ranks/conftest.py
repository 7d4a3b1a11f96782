"""Fixtures of tests with several ranks."""

from __future__ import annotations

import pytest

from tests.support.forked_ranks import RanksForkServer
from tests.support.forked_trainers import ForkServer


@pytest.fixture(scope="session")
def ranks_fork_server(fork_server: ForkServer) -> RanksForkServer:
    """Attempts of several ranks, forked from a process that has imported torch."""
    return RanksForkServer(fork_server)
