"""Two runs of a store through a real Prefect: the second begins with what the first saw of the pools."""

from __future__ import annotations

import os
import signal

import pytest
from prefect.client.schemas.objects import StateType

from segue.runlog.history import read_history
from segue.runlog.pool_memory import read_memory
from tests.flows.test_runs import LONG, client, final_state, live_attempt, start, until

__all__ = ("client",)
pytestmark = [pytest.mark.prefect, pytest.mark.matrix]


def test_the_second_run_of_a_store_begins_with_what_the_first_saw(client, make_spec):
    first, parent = start(client, make_spec(run_id="sees", **LONG))
    _, beat = until(lambda: live_attempt(first, past_step=100), what="the first segment")
    os.kill(beat.trainer_pid, signal.SIGKILL)
    assert final_state(client, parent).type is StateType.COMPLETED
    seen = read_memory(first.store)
    ups = [(each.pool, each.has_ended) for each in seen.intervals if each.is_up]
    assert ups == [("segment/spot", True), ("segment/spot", False)]

    second, parent = start(client, make_spec(run_id="knows", steps=20))
    assert final_state(client, parent).type is StateType.COMPLETED
    history = read_history(second.reload())
    assert history.seen_pools.intervals == seen.intervals
    assert {each.log_id for each in read_memory(second.store).intervals} == {first.log_id, second.log_id}
