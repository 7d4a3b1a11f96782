"""A standby's trainer: it boots before it has an assignment, and ends without a trace when it gets none."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from segue.clock import SystemClock
from segue.continuity.recipe_diff import UNTRACKED
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.registry import launch_standby
from segue.runlog.history import read_history

OWNER = """
import sys, time
from segue.spec import RunSpec
from segue.launch.registry import launch_standby
trainer = launch_standby(RunSpec.model_validate_json(sys.argv[1]))
while not trainer.is_booted():
    time.sleep(0.05)
print(trainer.pid, trainer._folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def boot():
    """Starts a standby's trainer and waits until it is booted; its processes end with the test."""
    started = []

    def start(spec, *, until_booted: bool = True):
        lines = []
        trainer = launch_standby(spec, on_line=lambda line: lines.append(line.text))
        started.append(trainer)
        give_up_at = time.monotonic() + 90
        while until_booted and not trainer.is_booted():
            assert trainer.poll() is None, "\n".join(lines)
            assert time.monotonic() < give_up_at, "\n".join(lines)
            time.sleep(0.05)
        return trainer, lines

    yield start
    for trainer in started:
        trainer.kill()
        trainer.wait(30)


@pytest.mark.matrix
def test_a_booted_trainer_gets_its_assignment_and_trains_the_same_state_as_any_other(
    boot, make_spec, open_log, fork_server
):
    spec = make_spec()
    runlog = open_log(spec)
    trainer, lines = boot(spec)
    assert read_history(runlog).attempts == ()
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    given_at = time.monotonic()
    trainer.take(Assignment(spec=spec, plan=plan, flow_run_id="flow"))
    while not read_history(runlog).attempts:
        assert time.monotonic() - given_at < 30, "\n".join(lines)
        time.sleep(0.02)
    assert trainer.wait(60) == ExitCode.FINISHED, "\n".join(lines)
    (attempt,) = read_history(runlog).attempts
    assert (attempt.claim.flow_run_id, attempt.claim.trainer_pid) == ("flow", trainer.pid)
    usual = make_spec(run_id="usual")
    fork_server.run_attempt(open_log(usual), usual)
    trained, expected = (read_history(open_log(s)).newest.manifest.components for s in (spec, usual))
    # What training changed outside the state may be of the process.
    assert {**trained, UNTRACKED: ""} == {**expected, UNTRACKED: ""}


@pytest.mark.matrix
def test_a_notice_ends_a_waiting_trainer_and_the_run_does_not_change(boot, make_spec, open_log):
    spec = make_spec()
    runlog = open_log(spec)
    trainer, lines = boot(spec)
    trainer.give_notice()
    assert trainer.wait(30) == ExitCode.NOTICE, "\n".join(lines)
    assert [slot.entry.kind for slot in runlog.refresh().slots] == ["open"]


@pytest.mark.matrix
def test_a_recipe_that_cannot_be_imported_ends_the_boot_with_the_reason(boot, make_spec):
    trainer, lines = boot(make_spec(recipe="tests.no_such_module:build"), until_booted=False)
    assert trainer.wait(60) == ExitCode.USAGE, "\n".join(lines)
    assert any("no module 'tests.no_such_module'" in line for line in lines)


@pytest.mark.matrix
def test_a_waiting_trainer_ends_with_the_process_that_started_it_and_leaves_no_folder(make_spec, tmp_path):
    command = [sys.executable, "-c", OWNER, make_spec().model_dump_json()]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        pid, folder = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)  # And not reaped: its supervisor may take a while.
        give_up_at = time.monotonic() + 30
        while is_alive(int(pid)):
            assert time.monotonic() < give_up_at, "it did not end"
            time.sleep(0.05)
    finally:
        owner.kill()
        owner.communicate()
    assert not Path(folder).exists()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # No process may be there to reap it.
    except psutil.NoSuchProcess:
        return False
