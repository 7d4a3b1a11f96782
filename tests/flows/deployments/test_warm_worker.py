"""Segments of the local pools start in an engine and a trainer that booted before, and end with their worker."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.flows.prefect_engine import WAIT_OPTION
from segue.launch.local import EARLY_OPTION
from segue.prefect.state_words import in_words
from segue.records import StopReason
from segue.runlog.history import read_history
from tests.flows.test_runs import ended_segments, final_state, live_attempt, start, until
from tests.support.run_processes import NO_RUN, flow_run_of

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

LONG = {"steps": 6000, "config": {"pause_seconds": 0.005}, "checkpoints": {"every_steps": 500}, "threads": 1}


@pytest.fixture
def client(own_stack):
    with get_client(sync_client=True) as client:
        yield client


def waiting(stack, option: str) -> list[psutil.Process]:
    """The processes of this stack that wait for a flow run, started with this option."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.environ().get("PREFECT_API_URL") == stack.api_url
            if is_ours and option in process.cmdline() and flow_run_of(process) == NO_RUN:
                found.append(process)
    return found


@pytest.mark.soak
def test_the_next_segment_starts_in_the_processes_that_waited_and_belongs_to_its_flow_run(client, own_stack, make_spec):
    spec = make_spec(run_id="warm", **LONG)
    runlog, parent = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog), what="the first segment")
    (engine,) = until(lambda: waiting(own_stack, WAIT_OPTION), what="an engine that waits")
    (trainer,) = until(lambda: waiting(own_stack, EARLY_OPTION), what="a trainer that waits")
    assert trainer.ppid() == engine.pid

    os.kill(claim.segment_pid, signal.SIGTERM)
    second, beat = until(
        lambda: (found := live_attempt(runlog)) and found[0].segment == 1 and found, what="the second segment"
    )
    assert (second.segment_pid, beat.trainer_pid) == (engine.pid, trainer.pid)
    assert {flow_run_of(engine), flow_run_of(trainer)} == {second.flow_run_id}

    # The worker is killed: what waits by then ends with it, and what trains goes on.
    until(lambda: waiting(own_stack, WAIT_OPTION), what="the next engine that waits")
    worker = own_stack.services["worker-spot"]
    worker.kill()
    until(
        lambda: not waiting(own_stack, WAIT_OPTION) and not waiting(own_stack, EARLY_OPTION),
        what="the end of what waited",
    )
    assert trainer.is_running()
    own_stack.start_again("worker-spot")
    state = final_state(client, parent, limit_seconds=300)
    assert state.type is StateType.COMPLETED, state.message
    reasons = [report.stop_reason for report in read_history(runlog.reload()).last_reports()]
    assert (reasons[0], reasons[-1]) == (StopReason.NOTICE, StopReason.FINISHED)
    assert in_words(ended_segments(client, "warm")[0].state) == "Preempted"
