"""A trainer that starts beside its segment's engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from segue.launch import early
from segue.launch.assignment import Assignment, ExitCode
from segue.records import StopReason
from segue.runlog.history import read_history
from tests.support.forked_trainers import next_plan


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    early.discard_early()


def children() -> list[psutil.Process]:
    """The trainers that were started early. One that shows no command line of its own yet is waited for."""
    while True:
        found = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
        if not any(each.cmdline() in ([], psutil.Process().cmdline()) for each in found):
            return [each for each in found if "--early" in each.cmdline()]
        time.sleep(0.01)


def blocked_signals(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16)


@pytest.mark.matrix
def test_the_first_assignment_gets_the_trainer_that_was_started_early(make_spec, open_log):
    spec = make_spec()
    runlog, lines = open_log(spec), []
    early.start_early()
    early.start_early()
    (waiting,) = children()
    made = Assignment(spec=spec, plan=next_plan(runlog, spec))
    trainer = early.launch_soonest(made, on_line=lambda line: lines.append(line.text))
    assert trainer.pid == waiting.pid
    assert trainer.wait(90) == ExitCode.FINISHED, "\n".join(lines)
    assert any("checkpoint committed" in line for line in lines)


@pytest.mark.matrix
def test_a_notice_that_comes_while_it_imports_is_not_lost(make_spec, open_log):
    spec = make_spec()
    runlog = open_log(spec)
    early.start_early()
    (waiting,) = children()
    trainer = early.launch_soonest(Assignment(spec=spec, plan=next_plan(runlog, spec)), on_line=lambda line: None)
    while not blocked_signals(waiting):
        assert waiting.is_running()
        time.sleep(0.001)
    trainer.give_notice()
    assert trainer.wait(90) == ExitCode.NOTICE
    assert read_history(runlog).last_reports()[-1].stop_reason is StopReason.NOTICE


def test_a_run_of_several_ranks_does_not_use_it(make_spec, open_log):
    spec = make_spec(ranks=2)
    runlog = open_log(spec)
    early.start_early()
    (waiting,) = children()
    trainer = early.launch_soonest(Assignment(spec=spec, plan=next_plan(runlog, spec)), on_line=lambda line: None)
    trainer.kill()
    trainer.wait(30)
    assert not waiting.is_running()


@pytest.mark.soak
def test_one_that_died_is_replaced(make_spec, open_log):
    spec = make_spec()
    runlog = open_log(spec)
    early.start_early()
    (waiting,) = children()
    waiting.kill()
    waiting.wait(10)
    trainer = early.launch_soonest(Assignment(spec=spec, plan=next_plan(runlog, spec)), on_line=lambda line: None)
    assert trainer.pid != waiting.pid
    assert trainer.wait(90) == ExitCode.FINISHED


@pytest.mark.matrix
def test_it_ends_with_the_process_that_started_it():
    script = "from segue.launch.early import start_early; start_early(); print('up', flush=True); input()"
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"up\n"
    (waiting,) = psutil.Process(owner.pid).children()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    waiting.wait(30)
