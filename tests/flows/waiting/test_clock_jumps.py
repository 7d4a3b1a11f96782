"""The clock of the parent's machine jumps, or is wrong from the start: the same decisions, and the run finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.prefect.parent_clock import server_time, store_time
from segue.prefect.ui.artifacts import artifact_key
from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from segue.stores import LocalStore
from tests.flows.test_runs import LONG, live_attempt, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

PARENT = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pendulum

from segue.clock import SystemClock


def moved():
    return timedelta(seconds=float(Path(sys.argv[2]).read_text()))


prefects = pendulum.now
pendulum.now = lambda tz=None: prefects(tz) + moved()
SystemClock.now = lambda clock: datetime.now(UTC) + moved()

from segue.flows.train import train
from segue.spec import RunSpec

train(RunSpec.model_validate_json(sys.argv[1]))
"""
"""A parent whose clock, for segue and for Prefect, is ahead by the seconds in a file. Python's monotonic one is not."""


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def start(stack, tmp_path):
    """Starts a parent in a process of its own; gives the process, what moves its clock, and its output."""
    started = []

    def run(spec, *, ahead=0):
        clock, output = tmp_path / "ahead", tmp_path / "output"

        def move(seconds):
            whole = tmp_path / "ahead.new"
            whole.write_text(str(seconds))
            whole.replace(clock)

        move(ahead)
        command = [sys.executable, "-c", PARENT, spec.model_dump_json(), str(clock)]
        env = os.environ | {"PREFECT_API_URL": stack.api_url}
        with output.open("w") as file:
            started.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT))
        return started[-1], move, output

    yield run
    for process in started:
        process.kill()
        process.wait()


def pages_of(client, spec):
    key = ArtifactFilter(key=ArtifactFilterKey(any_=[artifact_key(spec.run_id)]))
    return [artifact.data for artifact in client.read_artifacts(artifact_filter=key)]


def assert_on_spot_and_finished(runlog):
    history = read_history(runlog.reload())
    plans = [decision.plan for decision in history.decisions if decision.plan is not None]
    assert {plan.capacity for plan in plans} == {Capacity.SPOT}, [decision.reason for decision in history.decisions]
    reports = [report.stop_reason for report in history.last_reports()]
    assert reports == [StopReason.LOST, StopReason.FINISHED]
    lost, last = history.attempts[0], history.attempts[-1]
    return (last.claim.written_at - lost.claim.written_at).total_seconds()


@pytest.mark.parametrize("jump", [600, *(pytest.param(jump, marks=pytest.mark.soak) for jump in (-600, 86400))])
def test_a_jump_moves_no_decision_and_is_said_once(start, client, make_spec, jump):
    deadline = datetime.now(UTC) + timedelta(seconds=500)
    policy = {"step_seconds": 0.02, "changeover_seconds": 15, "detection_seconds": 10}
    spec = make_spec(run_id=f"jump{abs(jump)}{'f' if jump > 0 else 'b'}", deadline=deadline, policy=policy, **LONG)
    runlog = open_run(spec, clock=SystemClock())
    parent, move, output = start(spec)
    claim, _ = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    move(jump)
    until(lambda: "jumped by" in output.read_text(), what="the warning about the jump")
    os.kill(claim.trainer_pid, signal.SIGKILL)
    until(lambda: parent.poll() is not None, what="the end of the parent")
    said = output.read_text()
    assert parent.returncode == 0, said
    assert_on_spot_and_finished(runlog)
    assert said.count("jumped by") == 1, said
    assert "decisions are not affected" in said


def test_a_machine_whose_clock_is_wrong_starts_its_segments_at_once_and_judges_its_deadline_rightly(
    start, client, make_spec
):
    deadline = datetime.now(UTC) + timedelta(seconds=500)
    policy = {"step_seconds": 0.02, "changeover_seconds": 15, "detection_seconds": 10}
    spec = make_spec(run_id="wrong-clock", deadline=deadline, policy=policy, **LONG)
    runlog = open_run(spec, clock=SystemClock())
    parent, _, output = start(spec, ahead=600)
    claim, _ = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    os.kill(claim.trainer_pid, signal.SIGKILL)
    until(lambda: parent.poll() is not None, what="the end of the parent")
    assert parent.returncode == 0, output.read_text()
    assert_on_spot_and_finished(runlog)
    assert "10 min ahead of the clock of the Prefect server" in output.read_text()
    assert any("10 min ahead of the clock of the Prefect server" in page for page in pages_of(client, spec))


def test_server_and_store_show_their_time(client, tmp_path):
    now = datetime.now(UTC)
    for reading in (server_time(client), store_time(LocalStore(tmp_path / "store").create())):
        assert reading is not None
        assert abs((reading.at - now).total_seconds()) < 60
