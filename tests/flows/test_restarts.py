"""Workers are restarted by SIGTERM, and a server hangs: the run goes on by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from tests.flows.test_recovery import the_parents
from tests.flows.test_runs import LONG, final_state, live_attempt, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

SEGUE = Path(sys.executable).with_name("segue")


@pytest.fixture
def client(own_stack):
    with get_client(sync_client=True) as client:
        yield client


def restart(stack, pool: str) -> None:
    """As a service manager does: SIGTERM, SIGKILL if that does not end the worker, and a new worker."""
    worker = stack.services[f"worker-{pool}"]
    worker.terminate()
    try:
        worker.wait(20)
    except psutil.TimeoutExpired:
        worker.kill()
    stack.start_again(f"worker-{pool}")


@pytest.mark.soak
def test_a_run_survives_the_restart_of_every_worker_without_a_person(own_stack, client, make_spec):
    spec = make_spec(run_id="restarted", **LONG | {"steps": 3000})
    runlog, first = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    for pool in ("spot", "parents"):
        restart(own_stack, pool)
    environment = os.environ | {"PREFECT_API_URL": own_stack.api_url}

    def is_over_or_recovered():
        command = [str(SEGUE), "recover", "--store", spec.store.url]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        return read_history(runlog).is_over

    until(is_over_or_recovered, what="the end of the run", limit_seconds=240)
    last = the_parents(client, runlog)[0]
    assert final_state(client, last.id).type is StateType.COMPLETED
    assert client.read_flow_run(first).state.is_final(), "no parent stays Running for ever"
    reports = read_history(runlog.reload()).last_reports()
    assert reports[-1].stop_reason is StopReason.FINISHED
    assert all(report.stop_reason is StopReason.NOTICE and report.lost_steps == 0 for report in reports[:-1])


@pytest.mark.soak
def test_a_server_that_hangs_delays_neither_a_loss_nor_a_recall(own_stack, client, make_spec, tmp_path):
    brake = tmp_path / "brake"  # With it, a step takes so long that the deadline soon needs on-demand.
    tight = {
        "recipe": "tests.recipes.paced:build",
        "config": {"brake": str(brake), "pause_seconds": 0.005},
        "steps": 5000,
        "deadline": datetime.now(UTC) + timedelta(seconds=110),
        "policy": {"name": "greedy", "step_seconds": 0.006, "changeover_seconds": 5, "detection_seconds": 2},
    }
    lost_log, lost_parent = start(client, make_spec(run_id="lost-in-silence", **LONG | {"steps": 2000}))
    tight_log, tight_parent = start(client, make_spec(run_id="recalled-in-silence", **LONG | tight))
    _, beat = until(lambda: live_attempt(lost_log, past_step=60), what="the segment to lose")
    until(lambda: live_attempt(tight_log, past_step=60), what="the segment to recall")
    server = own_stack.services["server"]
    server.suspend()
    try:
        os.kill(beat.trainer_pid, signal.SIGKILL)
        (loss,) = until(lambda: read_history(lost_log).last_reports(), what="the loss", limit_seconds=30)
        assert loss.stop_reason is StopReason.LOST
        brake.touch()
        (recalled,) = until(lambda: read_history(tight_log).last_reports(), what="the recall", limit_seconds=120)
        assert (recalled.notice.kind, recalled.lost_steps) == ("recall", 0)
        brake.unlink()
    finally:
        server.resume()
    for parent, runlog, steps in ((lost_parent, lost_log, 2000), (tight_parent, tight_log, 5000)):
        state = final_state(client, parent, limit_seconds=200)
        # On a busy machine its steps may be late; what must not be late is the recall.
        assert read_history(runlog.reload()).committed_step == steps, state.message
    assert read_history(tight_log.reload()).last_reports()[-1].capacity is Capacity.ON_DEMAND
