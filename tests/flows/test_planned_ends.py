"""Planned ends through a real Prefect server and real workers: the next segment goes on on the same machine."""

from __future__ import annotations

import os
import signal

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.clock import SystemClock
from segue.controller.continuation import _OFFER_SECONDS
from segue.controller.steps import open_run
from segue.prefect.state_words import in_words
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.flows.test_runs import ended_segments, final_state, live_attempt, start, until
from tests.support.final_states import state_at_end

pytestmark = pytest.mark.prefect

PLANNED = {
    "steps": 1200,
    "segment": {"steps": 400},
    "config": {"pause_seconds": 0.005},
    "checkpoints": {"every_steps": 100},
    "threads": 1,
}
FINISHED, BOUND, NOTICE = StopReason.FINISHED, StopReason.BOUND, StopReason.NOTICE


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def machines(history):
    """The flow run of each attempt."""
    return [attempt.claim.flow_run_id for attempt in history.attempts]


def late_claims(history):
    """How many segments began later after their decision than the parent waits for a machine that is kept."""
    decided = {(each.plan.segment, each.plan.attempt): each.written_at for each in history.decisions if each.plan}
    claims = [attempt.claim for attempt in history.attempts[1:]]
    waits = [(claim.written_at - decided[claim.segment, claim.attempt]).total_seconds() for claim in claims]
    return sum(seconds >= 0.9 * _OFFER_SECONDS for seconds in waits)


@pytest.mark.soak
def test_segments_go_on_on_the_same_machine_and_end_as_an_undisturbed_run(client, make_spec, fork_server):
    undisturbed = make_spec(run_id="in-one-piece", **PLANNED | {"segment": {"count": 1}, "config": {}})
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)

    spec = make_spec(run_id="three-pieces", **PLANNED)
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert [(each.stop_reason, each.to_step) for each in history.last_reports()] == [
        (BOUND, 400),
        (BOUND, 800),
        (FINISHED, 1200),
    ]
    assert [attempt.verdict.kind for attempt in history.attempts[1:]] == [VerdictKind.EXACT] * 2
    assert len({attempt.claim.trainer_pid for attempt in history.attempts}) == 3, "each in a process of its own"
    assert state_at_end(history) == state_at_end(read_history(reference))
    runs, late = ended_segments(client, "three-pieces"), late_claims(history)
    assert len(runs) <= 1 + late, "another machine is asked only where the kept one did not answer in time"
    assert "Completed" in {run.state.name for run in runs}
    assert len(set(machines(history))) == 1 or late


@pytest.mark.soak
@pytest.mark.matrix
def test_a_machine_that_is_taken_back_in_its_second_segment_is_followed_by_another(client, make_spec):
    spec = make_spec(run_id="taken-back", **PLANNED)
    runlog, parent = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog, past_step=500), what="the second segment")
    os.kill(claim.segment_pid, signal.SIGTERM)
    assert final_state(client, parent).type is StateType.COMPLETED
    history = read_history(runlog.reload())
    assert [each.stop_reason for each in history.last_reports()] == [BOUND, NOTICE, BOUND, FINISHED]
    first, second, third, fourth = machines(history)
    assert (first, third) == (second, fourth)
    assert first != third
    assert [in_words(run.state) for run in ended_segments(client, "taken-back")] == ["Preempted", "Completed"]


@pytest.mark.soak
def test_a_machine_that_dies_at_a_planned_end_is_replaced(client, make_spec):
    spec = make_spec(run_id="dies-at-the-end", **PLANNED)
    runlog, parent = start(client, spec)

    def first_report():
        reports = list(read_history(runlog).last_reports())
        return reports[0] if reports else None

    claim, _ = until(lambda: live_attempt(runlog), what="the first segment")
    until(first_report, what="its planned end")
    os.kill(claim.segment_pid, signal.SIGKILL)
    assert final_state(client, parent).type is StateType.COMPLETED
    history = read_history(runlog.reload())
    assert history.committed_step == spec.steps
    assert machines(history)[0] != machines(history)[-1]
