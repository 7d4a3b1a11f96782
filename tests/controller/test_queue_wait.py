"""The wait of an attempt in a queue behind its segment, as its parent sees it."""

from __future__ import annotations

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.controller.waiting.attempt_starts import Starts, Submitted
from segue.controller.waiting.capacity_wait import CapacityWait
from segue.controller.waiting.queue_wait import QueueReporter, QueueWatch
from segue.records import StopReason
from segue.runlog.history import read_history

SLURM = {"slurm": {"spot": "spot", "on_demand": "ondemand"}}
WHY = "its Slurm job 7 waits in the queue (Resources)"


class RunningFlowRun:
    """An orchestrator whose flow run has a process."""

    def is_running(self, handle):
        return True

    def why_waiting(self, handle):
        return None


@pytest.fixture
def wait(make_spec, open_log, stretched_clock):
    spec = make_spec(**SLURM, liveness={"heartbeat_seconds": 1.0, "first_step_seconds": 60.0, "start_seconds": 300.0})
    runlog, shown = open_log(spec), []
    decided = decide_next(runlog, spec, clock=SystemClock()).plan
    plan = decided.model_copy(update={"start_within_seconds": 300.0})
    queue = QueueWatch(runlog.store, spec, plan, clock=stretched_clock)
    submitted = Submitted(plan, RunningFlowRun(), "handle")
    starts = Starts(runlog, spec, submitted, clock=stretched_clock)
    capacity = CapacityWait(spec, starts, clock=stretched_clock, show=shown.append, queue=queue)
    reporter = QueueReporter(spec, plan, clock=stretched_clock)
    return capacity, reporter, shown, read_history(runlog)


class Hands:
    """A clock that a test moves."""

    def __init__(self):
        self.at = 0.0

    def monotonic(self):
        return self.at

    def now(self):
        return SystemClock().now()

    def sleep(self, seconds):
        self.at += seconds


@pytest.fixture
def stretched_clock():
    return Hands()


def pass_time(wait, clock, seconds, *, why):
    capacity, reporter, _, history = wait
    for _ in range(int(seconds)):
        clock.sleep(1.0)
        reporter.look(why)
        capacity.show(history, is_claimed=False)


def test_an_attempt_in_a_queue_is_shown_as_waiting_and_not_taken_for_one_that_boots(wait, stretched_clock):
    capacity, _, shown, history = wait
    pass_time(wait, stretched_clock, 120, why=WHY)
    assert shown == [f"waiting for spot capacity (segment/spot): {WHY}"]
    assert capacity.why_give_up(history) is None
    pass_time(wait, stretched_clock, 200, why=WHY)
    reason, note = capacity.why_give_up(history)
    assert (reason, note) == (StopReason.NO_CAPACITY, "no capacity on spot within 320 s")


def test_once_it_has_its_machines_it_boots_and_has_the_time_of_a_boot(wait, stretched_clock):
    capacity, _, shown, history = wait
    pass_time(wait, stretched_clock, 120, why=WHY)
    pass_time(wait, stretched_clock, 30, why=None)
    assert shown[-1] == "booting (segment/spot)"
    assert capacity.why_give_up(history) is None
    pass_time(wait, stretched_clock, 62, why=None)
    reason, note = capacity.why_give_up(history)
    assert (reason, note) == (StopReason.START_FAILED, "its machine did not claim the run within 60 s")


def test_a_segment_that_reports_nothing_any_more_is_no_longer_in_a_queue(wait, stretched_clock):
    capacity, _, shown, history = wait
    pass_time(wait, stretched_clock, 20, why=WHY)
    for _ in range(200):
        stretched_clock.sleep(1.0)
        capacity.show(history, is_claimed=False)
        capacity.why_give_up(history)
    assert shown[-1] == "booting (segment/spot)"
    assert capacity.why_give_up(history)[0] is StopReason.START_FAILED


def test_without_a_queue_nothing_is_written(wait, stretched_clock, make_spec, open_log):
    pass_time(wait, stretched_clock, 20, why=None)
    runlog = open_log(make_spec(**SLURM))
    assert list(runlog.store.list_objects("tiny/queue/")) == []
