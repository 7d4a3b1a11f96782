"""Fixtures of tests with several ranks."""

from __future__ import annotations

import pytest

from tests.support.forked_ranks import RanksNursery
from tests.support.forked_trainers import Nursery


@pytest.fixture(scope="session")
def ranks_nursery(nursery: Nursery) -> RanksNursery:
    """Attempts of several ranks that start in a moment."""
    return RanksNursery(nursery)
