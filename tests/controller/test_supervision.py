"""A segment ends its trainer when the attempt is over, with everything that the trainer started."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.segment import NoticeRelay, run_attempt
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from tests.support.forked_trainers import next_plan

STUCK = "tests.recipes.stuck:build"
LONG = {"steps": 100_000, "config": {"pause_seconds": 0.01}, "grace_seconds": 1}


class Requests:
    """An orchestrator that asks nothing of the segment, or cancels it."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def look(self) -> None:
        return

    def was_cancelled(self) -> bool:
        return self.is_cancelled


class Segment:
    """A segment in a thread of this process, with a real trainer."""

    def __init__(self, spec, runlog) -> None:
        self.spec, self.runlog, self.plan = spec, runlog, next_plan(runlog, spec)
        self.relay, self.requests = NoticeRelay(), Requests()
        self.lines: list[str] = []
        self.report = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.report = run_attempt(
            self.spec,
            self.plan,
            relay=self.relay,
            requests=self.requests,
            clock=SystemClock(),
            on_line=lambda line: self.lines.append(line.text),
        )

    def trains(self, step: int = 1) -> psutil.Process:
        """Wait until it has done a step; the trainer's process."""
        give_up_at = time.monotonic() + 60
        while True:
            assert time.monotonic() < give_up_at, "\n".join(self.lines)
            attempt = read_history(self.runlog).attempt_of(self.plan.segment, self.plan.attempt)
            beat = last_heartbeat(self.runlog, attempt)
            if beat is not None and beat.phase == "training" and beat.step >= step:
                return psutil.Process(attempt.claim.trainer_pid)
            time.sleep(0.05)

    def prints(self, text: str) -> None:
        give_up_at = time.monotonic() + 60
        while not any(text in line for line in self.lines):
            assert time.monotonic() < give_up_at, "\n".join(self.lines)
            time.sleep(0.05)

    def ends(self) -> None:
        self._thread.join(90)
        assert not self._thread.is_alive(), "\n".join(self.lines)


@pytest.fixture
def start(make_spec, open_log):
    started: list[Segment] = []

    def make(**fields) -> Segment:
        spec = make_spec(**fields)
        started.append(Segment(spec, open_log(spec)))
        return started[-1]

    yield make
    for segment in started:
        attempt = read_history(segment.runlog).attempt_of(segment.plan.segment, segment.plan.attempt)
        if segment.report is None and attempt is not None and psutil.pid_exists(attempt.claim.trainer_pid):
            os.killpg(attempt.claim.trainer_pid, signal.SIGKILL)


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.soak
def test_a_suspended_trainer_whose_attempt_was_declared_lost_is_killed_with_its_writer(start):
    segment = start(**LONG)
    processes = family(segment.trains())
    assert len(processes) > 1
    processes[0].suspend()
    declare_lost(segment.runlog, segment.plan, why="no heartbeat for 30 s")
    segment.ends()
    assert alive(processes) == []
    assert segment.report.stop_reason is StopReason.LOST


@pytest.mark.matrix
def test_a_trainer_that_was_declared_lost_although_it_trains_commits_once_more_and_ends(start):
    segment = start(**LONG | {"grace_seconds": 20})
    processes = family(segment.trains(step=5))
    declare_lost(segment.runlog, segment.plan, why="no heartbeat for 30 s")
    segment.ends()
    assert alive(processes) == []
    assert segment.report.stop_reason is StopReason.NOTICE  # Its own report replaces the controller's.
    assert segment.report.lost_steps == 0


@pytest.mark.matrix
def test_a_trainer_in_which_no_thread_runs_writes_its_stacks_and_is_killed_after_a_notice(start):
    config = {"how": "hold", "at_step": 300, "pause_seconds": 0.01}  # Its first heartbeat comes before.
    segment = start(**LONG | {"recipe": STUCK, "config": config})
    processes = family(segment.trains())
    segment.prints("from now on no other thread runs")
    segment.relay.give()
    segment.ends()
    assert alive(processes) == []
    shown = "\n".join(segment.lines)
    assert "_hold_the_interpreter" in shown
    assert segment.report.stop_reason is StopReason.LOST
    assert segment.report.note == "the trainer was killed by SIGKILL without a report"
    assert (segment.report.notice.kind, segment.report.notice.phase) == ("sigterm", "step")  # It was not answered.


@pytest.mark.soak
def test_a_trainer_in_which_no_thread_runs_is_hung_and_not_preempted(start):
    config = {"how": "hold", "at_step": 300, "pause_seconds": 0.01}  # Its first heartbeat comes before.
    segment = start(**LONG | {"recipe": STUCK, "config": config})
    processes = family(segment.trains())
    segment.prints("from now on no other thread runs")
    declare_lost(segment.runlog, segment.plan, why="no heartbeat for 30 s")  # As its parent does.
    segment.ends()
    assert alive(processes) == []
    assert segment.report.stop_reason is StopReason.HUNG
    assert read_history(segment.runlog.reload()).report_of(0, 1).stop_reason is StopReason.HUNG


def test_the_report_of_a_trainer_that_aborts_says_what_it_printed_about_that(start):
    segment = start(recipe=STUCK, config={"how": "abort", "at_step": 5}, steps=200)
    segment.ends()
    assert segment.report.stop_reason is StopReason.LOST
    assert segment.report.note == (
        "the trainer was killed by SIGABRT without a report; it printed: "
        "terminate called after throwing an instance of 'c10::AcceleratorError' | "
        "what():  CUDA error: device-side assert triggered | Fatal Python error: Aborted"
    )


@pytest.mark.matrix
def test_processes_that_a_recipe_left_behind_end_with_the_trainer(start):
    config = {"how": "leave", "at_step": 5, "pause_seconds": 0.01}
    segment = start(recipe=STUCK, config=config, steps=200)
    processes = family(segment.trains(step=10))
    assert any("SIG_IGN" in " ".join(each.cmdline()) for each in processes)
    segment.ends()
    assert segment.report.stop_reason is StopReason.FINISHED
    assert alive(processes) == []


@pytest.mark.matrix
def test_a_cancelled_segment_commits_and_is_reported_as_cancelled(start):
    segment = start(**LONG | {"grace_seconds": 20})
    segment.trains(step=5)
    segment.requests.is_cancelled = True
    segment.relay.give()
    segment.ends()
    report = segment.report
    assert (report.stop_reason, report.lost_steps) == (StopReason.CANCELLED, 0)
    assert report.checkpoint.step == report.to_step >= 5
    assert read_history(segment.runlog.reload()).report_of(0, 1) == report
