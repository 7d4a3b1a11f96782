"""What needs the device beside the trainer: a rehearsal, and a standby that waits for its turn."""

from __future__ import annotations

import time

import pytest
import torch

from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.launch.registry import launch_standby
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.gpu.test_recipes import JUDGED, on_device  # noqa: F401 - a fixture

MIB = 2**20


def free_bytes():
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def test_a_rehearsal_is_judged_beside_the_training(fork_server, on_device, open_log):  # noqa: F811
    spec = on_device("mlp", steps=200, ranks=1, continuity=JUDGED)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    (drill,) = read_history(runlog.reload()).drills
    assert drill.verdict.kind in (VerdictKind.EXACT, VerdictKind.EQUIVALENT), drill.verdict.sentence


@pytest.mark.alone
@pytest.mark.only_cuda
def test_without_room_for_a_second_process_the_rehearsal_is_recorded_as_not_held(fork_server, on_device, open_log):  # noqa: F811
    spec = on_device("spacious", steps=200, continuity=JUDGED)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    (drill,) = read_history(runlog.reload()).drills
    assert drill.verdict.kind is VerdictKind.UNVERIFIED
    assert drill.verdict.findings[0].sentence.startswith("not held: the device has")


@pytest.mark.alone
def test_a_standby_holds_no_more_than_its_context_and_takes_over_at_once(on_device, open_log):  # noqa: F811
    spec = on_device("mlp", steps=20, ranks=1)
    runlog = open_log(spec)
    free_bytes()  # This process gets its own context first.
    before = free_bytes()
    standby = launch_standby(spec, on_line=lambda line: None)
    try:
        give_up_at = time.monotonic() + 120
        while not standby.is_booted():
            assert standby.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        assert before - free_bytes() <= 700 * MIB
        plan = decide_next(runlog, spec, clock=SystemClock()).plan
        standby.take(Assignment(spec=spec, plan=plan))
        code = standby.wait(120)
    finally:
        standby.kill()
    report = report_or_lost(runlog.reload(), plan, TrainerEnd(code))
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert report.startup_seconds <= (5 if torch.cuda.is_available() else 60)
