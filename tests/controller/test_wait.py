"""Waiting for an attempt: when it is declared lost, and when it is recalled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from segue.controller.steps import decide_next
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.wait import Period, await_report
from segue.errors import MissingObjectError
from segue.policy import clamp
from segue.policy.estimates import situation
from segue.policy.queueing import Queues
from segue.records import Capacity, CodeFailure, SegmentPlan, SegmentReport, StopReason
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.stores import open_store
from segue.stores.base import StoreReadError
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from segue.trainer.claim import Claim
from tests.controller.test_steps import START, Run

LOST = StopReason.LOST
HEARTBEAT_TIMEOUT, POLL = 30.0, 0.5


class ScriptedClock(FakeClock):
    """A sleep advances the time and runs the scripted actions: one at a moment, or one at every poll."""

    def __init__(self) -> None:
        super().__init__(START)
        self._script: list[tuple[float, Callable[[], object]]] = []
        self.at_every_poll: Callable[[], object] = lambda: None

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        self._script.append((seconds, act))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert self.monotonic() < 3600, "the wait did not end"
        due = [item for item in self._script if item[0] <= self.monotonic()]
        for item in due:
            self._script.remove(item)
            item[1]()
        self.at_every_poll()


class ScriptedOrchestrator:
    """An orchestrator that returns the states that the test sets, and records its calls."""

    def __init__(self) -> None:
        self.shows: str | None = None
        self.is_cancelled = self.has_started = False
        self.blocker: str | None = None
        self.refused: str | None = None
        self.queued: Queues | None = None
        self.asked: list[str] = []
        self.now: Callable[[], float] = lambda: 0.0
        self.starting: dict[str, float] = {}
        self.again: list[int] = []
        self.when_asked: Callable[[], object] = lambda: None
        self.when_cancelled: Callable[[], object] = lambda: None

    def state(self, handle: str) -> str | None:
        self.when_asked()
        return self.shows

    def is_running(self, handle: str) -> bool:
        return self.has_started

    def starting_seconds(self, handle: str) -> float | None:
        if self.has_started:
            self.starting.setdefault(handle, self.now())
        began = self.starting.get(handle)
        return None if began is None or began > self.now() else self.now() - began

    def flow_run_id(self, handle: str) -> str | None:
        return handle

    def submit_again(self, spec, plan, number: int) -> str | None:
        if number not in self.again:
            self.again.append(number)
        return f"start{number}"

    def why_waiting(self, handle: str) -> str | None:
        return self.blocker

    def queues(self, spec, handle: str) -> Queues | None:
        return self.queued

    def refusal(self, handle: str) -> str | None:
        return self.refused

    def was_cancelled(self, handle: str) -> bool:
        return self.is_cancelled

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        self.when_cancelled()
        self.asked.append(f"cancel: {why}")

    def mark_lost(self, handle: str, why: str) -> None:
        self.asked.append(f"mark lost: {why}")


class Watched(Run):
    """A run with a wait for its attempt, on scripted time."""

    def __init__(self, spec) -> None:
        self.clock: ScriptedClock = ScriptedClock()
        super().__init__(spec, self.clock)
        self.child = ScriptedOrchestrator()
        self.child.now = self.clock.monotonic
        self.recalls: list[float] = []
        self.shown: list[str | None] = []
        self.is_store_down: Callable[[str, str], bool] = lambda operation, key: False

    def wait(self, plan: SegmentPlan) -> SegmentReport:
        """Wait with a store that counts recalls and fails where the test sets it."""

        def fails(operation: str, key: str) -> bool:
            if self.is_store_down(operation, key):
                return True
            if operation == "put" and key.endswith("recall.json"):
                self.recalls.append(self.clock.monotonic())
            return False

        log = self.another_log()
        log.store = FaultyStore(open_store(self.spec.store), fails=fails)
        submitted = Submitted(plan, self.child, "attempt")
        return await_report(log, self.spec, submitted, clock=self.clock, show=self.shown.append)

    def started(self) -> tuple[SegmentPlan, Claim]:
        plan = self.decide()
        return plan, self.claim(plan)

    def beats_on(self, claim: Claim, *, until: float = 1e9, cut_off: tuple[float, float] = (0, 0), **fields) -> None:
        """The attempt writes a heartbeat at every poll, except while its store is unreachable."""

        def beat() -> None:
            now = self.clock.monotonic()
            if now <= until and not cut_off[0] <= now < cut_off[1]:
                self.beat(claim, **({"counter": int(now * 10), "step": 50} | fields))

        self.clock.at_every_poll = beat

    def reports(self, seconds: float, plan: SegmentPlan, claim: Claim, reason: StopReason) -> None:
        self.clock.at(seconds, lambda: self.report(plan, claim, reason))


@pytest.fixture
def watch(make_spec) -> Callable[..., Watched]:
    return lambda **fields: Watched(make_spec(**({"steps": 100, "checkpoints": {"every_steps": 10}} | fields)))


@pytest.fixture
def tight(watch) -> Callable[..., Watched]:
    """100 steps of a second in 150 s: a preemption must be known while 100 + 1.5 * 6 + 1 + 1.05 s are left."""

    def make(**policy) -> Watched:
        numbers = {"step_seconds": 1, "changeover_seconds": 6, "detection_seconds": 1, "margin_share": 0}
        return watch(deadline=START + timedelta(seconds=150), policy=numbers | policy)

    return make


RECALL_AT = 38.95


def test_the_report_of_the_attempt_ends_the_wait(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    run.reports(12, plan, claim, StopReason.NOTICE)
    report = run.wait(plan)
    assert (report.stop_reason, run.clock.monotonic(), run.child.asked) == (StopReason.NOTICE, 12, [])


@pytest.mark.parametrize("last_beat", [None, 0.0, 10.0])
def test_an_attempt_without_a_heartbeat_for_the_timeout_is_lost_and_shown_as_lost(watch, last_beat):
    run = watch()
    plan, claim = run.started()
    if last_beat is not None:
        run.beats_on(claim, until=last_beat, step=42)
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (LOST, "no heartbeat for 30 s")
    assert report.to_step == (42 if last_beat else 0)
    assert HEARTBEAT_TIMEOUT < run.clock.monotonic() - (last_beat or 0) <= HEARTBEAT_TIMEOUT + 2 * POLL
    assert run.child.asked == ["mark lost: no heartbeat for 30 s"]
    assert read_history(run.log).reports == (report,)


def test_an_attempt_with_slow_heartbeats_is_not_lost(watch):
    run = watch()
    plan, claim = run.started()
    for seconds in range(0, 200, 29):
        run.clock.at(seconds, lambda counter=seconds: run.beat(claim, counter=counter, step=1))
    run.reports(200, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_an_orchestrator_that_never_answers_does_not_matter(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    # Each request takes as long as Prefect's client retries: far longer than a heartbeat timeout.
    run.child.when_asked = lambda: run.clock.advance(62)
    run.reports(1000, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.asked == []


def test_a_lost_attempt_is_noticed_also_while_the_orchestrator_answers_slowly(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=100)
    run.child.when_asked = lambda: run.clock.advance(62)
    assert run.wait(plan).stop_reason is LOST
    assert run.clock.monotonic() < 100 + 5 * 63


def test_an_attempt_that_its_pool_could_not_start_had_no_machine(watch):
    run = watch()
    plan = run.decide()
    run.child.shows, run.child.refused = "Crashed", "the pool spot could not start it: 503"
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity, report.was_refused) == (StopReason.NO_CAPACITY, False, True)
    assert report.note == "the pool spot could not start it: 503"


def test_an_attempt_that_ended_without_a_report_is_lost_after_a_few_seconds(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=4)
    run.clock.at(4, lambda: setattr(run.child, "shows", "Crashed"))
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (LOST, "its flow run ended as Crashed without a report")
    grace = max(5, 3 * run.spec.liveness.heartbeat_seconds)
    assert 4 + grace < run.clock.monotonic() <= 4 + 2 + grace + 2 * POLL
    assert run.child.asked == []


def test_a_notice_by_which_a_person_cancelled_the_flow_run_is_no_preemption_and_ends_the_run(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    run.child.is_cancelled = True
    run.reports(12, plan, claim, StopReason.NOTICE)
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (StopReason.CANCELLED, "its flow run was cancelled")
    assert read_history(run.log).report_of(plan.segment, plan.attempt) == report
    assert decide_next(run.log, run.spec, clock=run.clock).action == "cancelled"


def test_a_cancelled_flow_run_that_left_no_report_is_cancelled_and_not_lost(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=4)
    run.child.is_cancelled = True
    run.clock.at(4, lambda: setattr(run.child, "shows", "Cancelled"))
    assert run.wait(plan).stop_reason is StopReason.CANCELLED


def test_an_attempt_that_vanished_at_its_memory_limit_is_out_of_memory(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=4, peak_memory_bytes=39 * 2**27, memory_bytes=39 * 2**27, memory_limit_bytes=40 * 2**27)
    run.clock.at(4, lambda: setattr(run.child, "shows", "Crashed"))
    report = run.wait(plan)
    assert report.stop_reason is StopReason.OUT_OF_MEMORY
    assert report.note == ("its flow run ended as Crashed without a report; peak memory 4.88 GiB, limit 5.00 GiB")


@pytest.mark.matrix
def test_an_attempt_with_heartbeats_is_not_lost_when_the_orchestrator_shows_it_as_crashed(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(4, lambda: setattr(run.child, "shows", "Crashed"))
    run.reports(200, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_a_report_within_those_seconds_counts(watch):
    run = watch()
    plan, claim = run.started()
    run.child.shows = "Completed"
    run.reports(6, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_without_capacity_the_report_is_written_before_the_cancellation(watch):
    run = watch(liveness={"start_seconds": 50}, policy={"changeover_seconds": 10})
    plan = run.decide()
    known: list[int] = []
    run.child.when_cancelled = lambda: known.append(len(read_history(run.log).reports))
    report = run.wait(plan)
    assert (report.stop_reason, report.attempt_id, run.clock.monotonic()) == (StopReason.NO_CAPACITY, None, 60)
    assert known == [1]
    assert run.child.asked == ["cancel: no capacity on spot within 60 s"]


@pytest.mark.parametrize(
    ("turn_comes_late_by", "has_machine", "leaves_early_by"),
    [(100, False, 200), (-1, False, 0), (None, False, 0), (100, True, -10)],
    ids=["behind many", "in time", "no queue", "booting"],
)
def test_of_a_queue_that_spot_does_not_serve_in_time_the_last_leave_first(
    watch, turn_comes_late_by, has_machine, leaves_early_by
):
    """On-demand has half as many slots, so who would be 100 s too late on spot needs 200 s there behind the others."""
    policy = {"step_seconds": 1, "changeover_seconds": 6, "detection_seconds": 1, "margin_share": 0}
    run = watch(deadline=START + timedelta(seconds=1000), policy=policy, liveness={"start_seconds": 5000})
    plan = run.decide()
    limit = plan.start_within_seconds

    def becomes_known() -> None:
        free_at = None if turn_comes_late_by is None else START + timedelta(seconds=limit + turn_comes_late_by)
        run.child.queued = Queues(spot_free_at=free_at, slots_ratio=2.0)
        run.child.has_started = has_machine

    run.clock.at(limit - 110 if has_machine else 20, becomes_known)
    report = run.wait(plan)
    assert report.stop_reason is (StopReason.START_FAILED if has_machine else StopReason.NO_CAPACITY)
    is_behind = turn_comes_late_by is not None and not has_machine
    assert report.note.endswith("; behind other runs, its slot would have come too late") == is_behind
    assert run.clock.monotonic() == pytest.approx(limit - leaves_early_by, abs=1)


def queued_for(watch, *, seconds, pools=("segment/spot",), on_demand_seconds=0.0):
    """The wait of an attempt whose plan has a capacity timeout of 60 s, and which is in spot's queue for some time."""
    policy = {"step_seconds": 1, "changeover_seconds": 10, "detection_seconds": 1, "margin_share": 0}
    spot = [{"deployment": pool} for pool in pools]
    fields = {"policy": policy, "liveness": {"start_seconds": 50}, "pools": {"spot": spot}}
    run = watch(deadline=START + timedelta(seconds=1000), **fields)
    plan = run.decide(queues=Queues(spot_free_at=START + timedelta(seconds=300), slots_ratio=2.0))
    assert plan.start_within_seconds == 60
    # It is known 5 s after the start, and its turn always seems to come in five minutes.
    free_at = START + timedelta(seconds=300)
    full = Queues(on_demand_seconds=on_demand_seconds, spot_free_at=free_at, slots_ratio=2.0)
    run.clock.at(5, lambda: setattr(run.child, "queued", full))
    run.clock.at(seconds, lambda: setattr(run.child, "queued", full.without_spot))
    return run, plan


def boots(run, plan, *, at, reason=StopReason.FINISHED, after_seconds=180) -> None:
    """The attempt claims the run then, and ends so after some time."""

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim, step=0)
        run.reports(at + after_seconds, plan, claim, reason)

    run.clock.at(at, start)


@pytest.mark.matrix
@pytest.mark.parametrize("pools", [("segment/spot",), ("segment/spot", "segment/spot-b")])
def test_an_attempt_keeps_its_place_in_a_queue_that_moves_beyond_the_capacity_timeout_and_boots_on_its_slot(
    watch, pools
):
    run, plan = queued_for(watch, seconds=300, pools=pools)
    boots(run, plan, at=320)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_once_it_has_left_the_queue_an_attempt_has_the_time_of_the_plan_to_claim_the_run(watch):
    run, plan = queued_for(watch, seconds=300)
    assert run.wait(plan).stop_reason is StopReason.NO_CAPACITY
    assert run.clock.monotonic() == pytest.approx(300 + 60, abs=2)


@pytest.mark.parametrize("on_demand_seconds", [0.0, 200.0])
def test_the_deadline_ends_the_wait_in_a_queue_with_the_time_that_on_demand_is_waited_for(watch, on_demand_seconds):
    run, plan = queued_for(watch, seconds=5000, on_demand_seconds=on_demand_seconds)
    report = run.wait(plan)
    assert report.stop_reason is StopReason.NO_CAPACITY
    here = situation(run.spec, read_history(run.log), now=START, on_demand_queue_seconds=on_demand_seconds)
    assert run.clock.monotonic() == pytest.approx(clamp.longest_wait_seconds(here), abs=1)


@pytest.mark.matrix
@pytest.mark.parametrize("in_queue_until", [300, None], ids=["in the queue", "has its slot"])
def test_a_parent_that_comes_after_the_capacity_timeout_keeps_the_place(watch, in_queue_until):
    run, plan = queued_for(watch, seconds=300)
    run.clock.advance(100)  # The parent that decided waited 100 s and was killed.
    run.child.queued = None
    known = None if in_queue_until is None else Queues(spot_free_at=START + timedelta(seconds=300), slots_ratio=2.0)
    run.clock.at(120, lambda: setattr(run.child, "queued", known or Queues()))
    boots(run, plan, at=(in_queue_until or 120) + 20)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_the_time_of_an_earlier_parent_counts_for_an_attempt_that_was_in_no_queue(watch):
    run = watch(deadline=START + timedelta(seconds=1000), policy={"step_seconds": 1}, liveness={"start_seconds": 50})
    plan = run.decide()
    run.clock.advance(200)
    run.child.queued = Queues()
    assert run.wait(plan).stop_reason is StopReason.NO_CAPACITY
    assert run.clock.monotonic() < 205


def test_a_spot_attempt_that_repeats_a_failure_is_not_withdrawn_for_the_deadline(watch):
    """A bug is not bought on-demand for: the attempt shows whether the recipe raises again."""
    policy = {"step_seconds": 1, "changeover_seconds": 6, "detection_seconds": 1, "margin_share": 0}
    run = watch(deadline=START + timedelta(seconds=150), policy=policy, liveness={"start_seconds": 5})
    plan, claim = run.started()
    run.clock.advance(40)
    failure = CodeFailure(type="ValueError", message="no such column", traceback="Traceback ...")
    run.report(plan, claim, StopReason.FAILED, failure=failure)
    plan = run.decide()
    assert plan.capacity is Capacity.SPOT
    boots(run, plan, at=43, reason=StopReason.FAILED, after_seconds=1)
    assert run.wait(plan).stop_reason is StopReason.FAILED


@pytest.mark.matrix
@pytest.mark.parametrize(("spot_seconds", "leaves"), [(400, False), (5000, True)])
def test_a_place_on_spot_that_is_in_time_is_not_given_up_for_a_queue_of_on_demand_that_is_not(
    watch, spot_seconds, leaves
):
    run, plan = queued_for(watch, seconds=400, on_demand_seconds=0.0)
    full = Queues(on_demand_seconds=1200, spot_free_at=START + timedelta(seconds=spot_seconds), slots_ratio=0.0)
    run.clock.at(20, lambda: setattr(run.child, "queued", full))
    boots(run, plan, at=420)
    report = run.wait(plan)
    assert report.stop_reason is (StopReason.NO_CAPACITY if leaves else StopReason.FINISHED)
    assert run.clock.monotonic() < 30 or not leaves


def test_what_an_attempt_without_a_machine_waits_for_is_shown(watch):
    run = watch(liveness={"start_seconds": 50}, policy={"changeover_seconds": 10})
    plan = run.decide()
    run.clock.at(20, lambda: setattr(run.child, "blocker", "the pool spot is paused"))

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim)
        run.reports(60, plan, claim, StopReason.FINISHED)

    run.clock.at(40, start)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    waiting = "waiting for spot capacity (segment/spot)"
    assert run.shown == [waiting, f"{waiting}: the pool spot is paused", None]


@pytest.mark.parametrize(("blocker", "warnings"), [(None, 0), ("its image cannot be pulled", 1)])
def test_a_slow_start_on_a_machine_is_a_warning_only_where_something_holds_it(watch, caplog, blocker, warnings):
    run = watch(policy={"changeover_seconds": 10})
    plan = run.decide()
    run.child.has_started, run.child.blocker = True, blocker

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim)
        run.reports(100, plan, claim, StopReason.FINISHED)

    run.clock.at(40, start)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    text = "booting (segment/spot)" + (f": {blocker}" if blocker else "")
    assert run.shown == [text, None]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"no machine yet: {text}"
    ] * warnings


@pytest.mark.matrix
@pytest.mark.parametrize("deadline_in", [None, 5000])
def test_an_attempt_that_boots_on_its_machine_is_not_withdrawn_for_the_capacity_timeout(watch, deadline_in):
    deadline = None if deadline_in is None else START + timedelta(seconds=deadline_in)
    policy = {"changeover_seconds": 10, "step_seconds": 0.01}
    run = watch(liveness={"start_seconds": 50}, deadline=deadline, policy=policy)
    plan = run.decide()
    run.child.has_started = True

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim)
        run.reports(300, plan, claim, StopReason.FINISHED)

    run.clock.at(200, start)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_on_demand_that_has_a_machine_and_never_claims_is_not_waited_for_without_end(watch):
    policy = {"name": "on_demand_only", "changeover_seconds": 10, "step_seconds": 0.01}
    run = watch(deadline=START + timedelta(seconds=600), policy=policy)
    plan = run.decide()
    assert plan.start_within_seconds is None
    run.clock.at(300, lambda: setattr(run.child, "has_started", True))
    run.child.submit_again = lambda spec, plan, number: None
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity) == (StopReason.START_FAILED, False)
    assert run.clock.monotonic() == pytest.approx(300 + 360, abs=3)
    assert run.child.asked == ["cancel: a worker took it, and it did not claim the run within 360 s"]


def test_capacity_that_comes_just_in_time_is_used(watch):
    run = watch(liveness={"start_seconds": 50}, policy={"changeover_seconds": 10})
    plan = run.decide()

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim)
        run.reports(100, plan, claim, StopReason.FINISHED)

    run.clock.at(59.5, start)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


@pytest.mark.matrix
@pytest.mark.parametrize(("deadline_in", "gives_up_at"), [(None, 110), (500, 60)])
def test_the_wait_of_an_earlier_parent_counts_when_there_is_a_deadline(watch, deadline_in, gives_up_at):
    deadline = None if deadline_in is None else START + timedelta(seconds=deadline_in)
    policy = {"step_seconds": 0.01, "changeover_seconds": 1}
    run = watch(deadline=deadline, liveness={"start_seconds": 59}, policy=policy)
    plan = run.decide()
    run.clock.advance(50)  # The parent that decided waited 50 s and was killed.
    assert run.wait(plan).stop_reason is StopReason.NO_CAPACITY
    assert run.clock.monotonic() == gives_up_at


def test_the_wait_continues_while_the_store_is_unreachable_for_longer_than_a_heartbeat_timeout(watch):
    run = watch()
    plan, claim = run.started()
    run.is_store_down = lambda operation, key: 10 <= run.clock.monotonic() < 100
    # The attempt cannot reach it either, and needs some seconds until its next try.
    run.beats_on(claim, cut_off=(10, 110))
    run.reports(130, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_an_attempt_that_died_while_the_store_was_unreachable_is_noticed_soon_after(watch):
    run = watch()
    plan, claim = run.started()
    run.is_store_down = lambda operation, key: 10 <= run.clock.monotonic() < 100
    run.beats_on(claim, until=50, cut_off=(10, 1e9))
    assert run.wait(plan).stop_reason is LOST
    assert run.clock.monotonic() == pytest.approx(100 + HEARTBEAT_TIMEOUT, abs=2 * POLL)


def test_an_attempt_that_could_not_write_heartbeats_to_a_full_disk_is_not_lost(watch):
    run = watch()
    plan, claim = run.started()
    run.is_store_down = lambda operation, key: operation.startswith("put") and 10 <= run.clock.monotonic() < 100
    run.beats_on(claim, cut_off=(10, 110))
    run.reports(200, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.asked == []


def test_a_report_that_cannot_be_written_is_retried(watch):
    run = watch()
    plan, _ = run.started()
    run.is_store_down = lambda operation, key: operation == "put_if_absent" and run.clock.monotonic() < 90
    assert run.wait(plan).stop_reason is LOST
    assert 90 <= run.clock.monotonic() <= 90 + HEARTBEAT_TIMEOUT


def test_an_attempt_is_recalled_once_when_a_preemption_now_would_cost_the_deadline(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.reports(43, plan, claim, StopReason.BOUND)
    assert run.wait(plan).stop_reason is StopReason.BOUND
    assert len(run.recalls) == 1
    assert RECALL_AT < run.recalls[0] <= RECALL_AT + POLL
    assert run.log.store.get(keys.recall_key(run.spec.run_id, claim.attempt_id)) == b"the deadline requires on-demand"
    assert decide_next(run.log, run.spec, clock=run.clock).plan.capacity is Capacity.ON_DEMAND


@pytest.mark.matrix
def test_each_commit_delays_the_recall(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(35, lambda: run.commit(claim, 30))
    run.reports(73, plan, claim, StopReason.BOUND)
    run.wait(plan)
    assert len(run.recalls) == 1
    assert RECALL_AT + 30 < run.recalls[0] <= RECALL_AT + 30 + POLL


@pytest.mark.parametrize(
    ("step", "step_seconds", "earliest"), [(50, 1.2, RECALL_AT - 20.2), (50, 0.5, RECALL_AT), (5, 9.0, RECALL_AT)]
)
def test_steps_slower_than_measured_bring_the_recall_forward_once_they_are_enough(tight, step, step_seconds, earliest):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim, step=step, step_seconds=step_seconds)
    run.reports(earliest + 1, plan, claim, StopReason.BOUND)
    run.wait(plan)
    assert len(run.recalls) == 1
    assert earliest < run.recalls[0] <= earliest + POLL


@pytest.mark.matrix
def test_no_attempt_is_recalled_from_on_demand_or_without_a_deadline(tight, watch):
    for run in (tight(name="on_demand_only"), watch(run_id="free", policy={"step_seconds": 1})):
        plan, claim = run.started()
        run.beats_on(claim)
        run.reports(300, plan, claim, StopReason.FINISHED)
        run.wait(plan)
        assert run.recalls == []


def test_a_recall_that_is_not_stored_is_retried(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.is_store_down = lambda operation, key: operation == "put" and run.clock.monotonic() < 50
    run.reports(60, plan, claim, StopReason.BOUND)
    run.wait(plan)
    assert run.recalls == [50]


@pytest.fixture
def patient(watch) -> Callable[..., Watched]:
    """100 steps of a second in 200 s: recalled at 52.95 s, because a death shows only after the heartbeat timeout."""

    def make() -> Watched:
        policy = {"step_seconds": 1, "changeover_seconds": 6, "detection_seconds": 40, "margin_share": 0}
        return watch(deadline=START + timedelta(seconds=200), policy=policy)

    return make


def test_an_attempt_that_does_not_answer_its_recall_is_lost_in_spite_of_its_heartbeats(patient):
    run = patient()
    plan, claim = run.started()
    run.beats_on(claim)
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (LOST, "no answer to a recall for 30 s")
    assert len(run.recalls) == 1
    assert run.child.asked == ["mark lost: no answer to a recall for 30 s"]


NEARLY_TOO_LATE = "it was recalled and did not end in time for on-demand to meet the deadline"


@pytest.mark.parametrize("phase", ["training", "stopping"])
def test_a_recalled_attempt_that_does_not_end_is_lost_while_on_demand_still_meets_the_deadline(tight, phase):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(43, lambda: run.beats_on(claim, phase=phase))
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (LOST, NEARLY_TOO_LATE)
    assert run.child.asked == [f"mark lost: {NEARLY_TOO_LATE}"]
    after = decide_next(run.log, run.spec, clock=run.clock)
    assert after.plan.capacity is Capacity.ON_DEMAND
    assert "will be missed" not in after.reason


def test_a_last_save_that_takes_longer_than_a_heartbeat_timeout_is_waited_for_while_there_is_time(patient):
    run = patient()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(54, lambda: run.beats_on(claim, phase="stopping"))
    run.reports(90, plan, claim, StopReason.BOUND)
    assert run.wait(plan).stop_reason is StopReason.BOUND


@pytest.mark.matrix
def test_the_wait_for_a_last_save_that_is_too_late_is_limited_by_the_work_it_saves(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.is_store_down = lambda operation, key: operation == "put" and run.clock.monotonic() < 50
    run.clock.at(51, lambda: run.beats_on(claim, phase="stopping"))
    report = run.wait(plan)
    # A heartbeat timeout, 1.05 s for the answer, and the 10 s of work between two commits.
    assert (report.stop_reason, report.note) == (LOST, "it was recalled and did not end within 41 s")
    assert 50 + 41 < run.clock.monotonic() <= 50 + 41.05 + 2 * POLL


@pytest.mark.matrix
@pytest.mark.parametrize("phase", ["starting", "restoring"])
def test_an_attempt_that_does_not_train_yet_is_lost_when_the_deadline_requires_on_demand(tight, phase):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim, phase=phase, step=0)
    report = run.wait(plan)
    assert (report.stop_reason, report.lost_steps, run.recalls) == (LOST, 0, [])
    assert RECALL_AT < run.clock.monotonic() <= RECALL_AT + POLL
    with pytest.raises(MissingObjectError):
        run.log.store.get(keys.recall_key(run.spec.run_id, claim.attempt_id))


@pytest.mark.parametrize(("step", "is_recalled"), [(7, False), (8, True)])
def test_an_attempt_after_one_that_raised_is_not_recalled_until_it_has_passed_that_step(tight, step, is_recalled):
    run = tight()
    plan, claim = run.started()
    failure = CodeFailure(type="ValueError", message="bad", traceback="...")
    run.report(plan, claim, StopReason.FAILED, to_step=7, failure=failure)
    plan, claim = run.started()
    run.beats_on(claim, step=step)
    run.reports(60, plan, claim, StopReason.BOUND)
    run.wait(plan)
    assert bool(run.recalls) is is_recalled


def test_a_wait_with_bounded_patience_raises_what_the_store_raises(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    log = run.another_log()
    log.store = FaultyStore(open_store(run.spec.store), fails=lambda operation, key: True)
    submitted = Submitted(plan, run.child, "attempt")
    with pytest.raises(StoreReadError):
        await_report(log, run.spec, submitted, clock=run.clock, period=Period(patience_seconds=20.0))
    assert 20 < run.clock.monotonic() < 25


@pytest.mark.matrix
def test_an_attempt_that_ignores_the_deadline_for_the_budget_is_not_recalled(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.reports(200, plan, claim, StopReason.FINISHED)
    assert run.wait(plan.model_copy(update={"ignores_deadline": True})).stop_reason is StopReason.FINISHED
    assert run.recalls == []
