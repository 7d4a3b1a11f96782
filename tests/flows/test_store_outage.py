"""The store is full or away for longer than the time-outs: the run waits for it, goes on, and doubles nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import StateType

from benchmarks.chaos.places import folder_place
from segue.clock import SystemClock
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from tests.flows.test_runs import final_state, live_attempt, start, until
from tests.support.run_processes import wait_for_processes_of_runs

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

PACED = {
    "steps": 3000,
    "config": {"pause_seconds": 0.005},
    "checkpoints": {"every_steps": 200},
    "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 6},
    "threads": 1,
}
FULL_SECONDS, AWAY_SECONDS = 15.0, 75.0
"""Longer than the heartbeat timeout; and than a trainer waits to report its end."""


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def place(tmp_path, stack):
    with folder_place(tmp_path / "place") as place:
        if not place.can_be_filled:
            pytest.skip("no disk can be mounted here")
        yield place
        # A segment reads its log once more after the parent has ended, and waits 15 minutes for a store that is gone.
        wait_for_processes_of_runs(stack)


def begin(client, make_spec, place, run_id: str):
    """A run on the place, and its log by a way that no fault touches."""
    spec = make_spec(run_id=run_id, store=place.spec.model_dump(mode="json"), **PACED)
    _, parent = start(client, spec)
    return spec, RunLog(place.store(), run_id, clock=SystemClock()), parent


def parents(client, run_id: str):
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", run_id]))
    return [run for run in client.read_flow_runs(flow_run_filter=wanted) if run.name == run_id]


@pytest.mark.soak
def test_an_attempt_trains_on_while_the_store_is_full_for_longer_than_its_heartbeat_timeout(client, make_spec, place):
    spec, runlog, parent = begin(client, make_spec, place, "full-store")
    until(lambda: live_attempt(runlog, past_step=300), what="the segment")
    place.fill()
    time.sleep(FULL_SECONDS)
    place.empty()
    assert final_state(client, parent).type is StateType.COMPLETED
    history = read_history(runlog.reload())
    assert [report.stop_reason for report in history.last_reports()] == [StopReason.FINISHED]
    assert history.committed_step == spec.steps


@pytest.mark.soak
def test_a_trainer_that_dies_while_the_store_is_away_costs_only_its_uncommitted_work(client, make_spec, place):
    spec, runlog, parent = begin(client, make_spec, place, "store-away")
    _, beat = until(lambda: live_attempt(runlog, past_step=500), what="the segment")
    place.take_away()
    os.kill(beat.trainer_pid, signal.SIGKILL)
    time.sleep(AWAY_SECONDS)
    place.bring_back()
    assert final_state(client, parent).type is StateType.COMPLETED
    history = read_history(runlog.reload())
    assert [report.stop_reason for report in history.last_reports()] == [StopReason.LOST, StopReason.FINISHED]
    assert (history.committed_step, history.damage) == (spec.steps, ())
    plans = [(entry.plan.segment, entry.plan.attempt) for entry in history.decisions if entry.plan is not None]
    assert len(plans) == len(set(plans)) == 2
    assert len(parents(client, "store-away")) == 1, "the same parent went on"
