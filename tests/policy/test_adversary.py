"""Against an adversary, no run with several pools misses a deadline that on-demand alone would meet."""

from __future__ import annotations

import pytest

from tests.policy.adversary import AdversarialRun

RUNS = 100


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(4))
def test_no_run_is_late_however_spot_behaves(part):
    found = [AdversarialRun(RUNS * part + number).to_the_end() for number in range(RUNS)]
    assert [number for number, result in enumerate(found) if result.late_seconds > 1e-6] == []
    # The adversary has something to do: runs train on spot, on several pools, and hand over.
    assert sum(result.spot_seconds > 0 for result in found) > RUNS / 2
    assert sum(len(result.pools) > 1 for result in found) > RUNS / 20
    assert sum(result.handovers for result in found) > RUNS / 20
