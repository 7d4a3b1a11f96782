"""A parent asks a remote store rarely, and still acts in time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from benchmarks.waiting.remote_store import RemoteStore
from segue.controller.recovery import ParentHeartbeat, register_start
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.wait import await_report
from segue.policy.estimates import detection_seconds
from segue.records import SegmentPlan, SegmentReport, StopReason
from segue.runlog.parents import read_parent
from segue.spec import StoreSpec
from segue.stores import LocalStore, open_store
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from tests.controller.test_steps import START
from tests.controller.test_wait import HEARTBEAT_TIMEOUT, POLL, Watched

ASK, LOOK, HEARTBEAT = 2.0, 10.0, 2.0
LIVENESS = {"heartbeat_seconds": HEARTBEAT, "heartbeat_timeout_seconds": HEARTBEAT_TIMEOUT}
"""The default settings; those of other tests are faster."""
RECALL_AT = 37.0
"""150 s, less 100 s of work, 9 s of boot with its margin, 1 s until a death is noticed, 3 s until an answer."""
MOST_A_MINUTE = 30


class WatchedRemotely(Watched):
    """A run whose parent sees the store as a remote one; everything else writes to it directly."""

    def wait(self, plan: SegmentPlan) -> SegmentReport:
        def fails(operation: str, key: str) -> bool:
            if operation == "put" and key.endswith("recall.json"):
                self.recalls.append(self.clock.monotonic())
            return self.is_store_down(operation, key)

        log = self.another_log()
        log.store = self.store = RemoteStore(FaultyStore(open_store(self.spec.store), fails=fails))
        log.reload()
        self.store.requests.clear()
        return await_report(log, self.spec, Submitted(plan, self.child, "attempt"), clock=self.clock)

    def ends(self, seconds: float) -> None:
        """The orchestrator shows the end of the attempt."""
        self.clock.at(seconds, lambda: setattr(self.child, "shows", "Completed"))


@pytest.fixture
def watch(make_spec):
    common = {"steps": 100, "checkpoints": {"every_steps": 10}, "liveness": LIVENESS}
    return lambda **fields: WatchedRemotely(make_spec(**(common | fields)))


@pytest.fixture
def tight(watch):
    policy = {"step_seconds": 1, "changeover_seconds": 6, "detection_seconds": 1, "margin_share": 0}
    return lambda: watch(deadline=START + timedelta(seconds=150), policy=policy)


@pytest.mark.matrix
def test_a_waiting_parent_makes_at_most_thirty_requests_a_minute(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    for minute in range(30):
        run.clock.at(60 * minute + 7, lambda step=minute + 1: run.commit(claim, step))
    run.reports(1800, plan, claim, StopReason.FINISHED)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    parent = ParentHeartbeat(run.store, run.spec, clock=run.clock)
    parent.take_over()
    run_a_minute = sum(run.store.requests.values()) / 30
    run.store.requests.clear()
    parent._beat()
    parent_a_minute = sum(run.store.requests.values()) * 60 / parent.period_seconds
    assert run_a_minute > 60 / LOOK
    assert run_a_minute + parent_a_minute <= MOST_A_MINUTE


def test_a_parent_that_waits_for_capacity_makes_no_more(watch):
    run = watch()
    plan = run.decide()
    assert run.wait(plan).stop_reason is StopReason.NO_CAPACITY
    minutes = plan.start_within_seconds / 60
    assert run.clock.monotonic() == pytest.approx(plan.start_within_seconds, abs=POLL)
    assert sum(run.store.requests.values()) <= 18 * minutes


def test_an_end_that_the_orchestrator_shows_is_seen_at_once(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    run.reports(103, plan, claim, StopReason.NOTICE)
    run.ends(103)
    assert run.wait(plan).stop_reason is StopReason.NOTICE
    assert run.clock.monotonic() <= 103 + ASK + POLL


def test_without_the_orchestrator_an_end_is_seen_at_the_next_look(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim)
    run.reports(103, plan, claim, StopReason.NOTICE)
    assert run.wait(plan).stop_reason is StopReason.NOTICE
    assert run.clock.monotonic() <= 103 + LOOK + POLL


@pytest.mark.parametrize("last_beat", [95.0, 98.5, 101.0, 104.5])
def test_a_lost_attempt_is_seen_within_the_heartbeat_timeout_and_one_look(watch, last_beat):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=last_beat)
    assert run.wait(plan).note == "no heartbeat for 30 s"
    assert HEARTBEAT_TIMEOUT < run.clock.monotonic() - last_beat <= HEARTBEAT_TIMEOUT + LOOK + 2 * POLL


def test_an_attempt_whose_process_died_is_lost_after_a_few_seconds(watch):
    run = watch()
    plan, claim = run.started()
    run.beats_on(claim, until=104)
    run.ends(104)
    assert run.wait(plan).stop_reason is StopReason.LOST
    grace = max(5, 3 * run.spec.liveness.heartbeat_seconds)
    assert run.clock.monotonic() <= 104 + ASK + grace + 2 * POLL


def test_a_recall_is_not_delayed(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(35, lambda: run.commit(claim, 30))
    run.reports(74, plan, claim, StopReason.BOUND)
    assert run.wait(plan).stop_reason is StopReason.BOUND
    assert len(run.recalls) == 1
    assert RECALL_AT + 30 < run.recalls[0] <= RECALL_AT + 30 + POLL


def test_the_answer_to_a_recall_is_seen_within_a_heartbeat(tight):
    run = tight()
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(41, lambda: run.beats_on(claim, phase="stopping"))
    run.reports(42, plan, claim, StopReason.BOUND)
    assert run.wait(plan).stop_reason is StopReason.BOUND
    assert run.clock.monotonic() <= 42 + HEARTBEAT + POLL


def test_capacity_that_comes_just_in_time_is_used(watch):
    run = watch(liveness=LIVENESS | {"start_seconds": 50}, policy={"changeover_seconds": 10})
    plan = run.decide()

    def start() -> None:
        claim = run.claim(plan)
        run.beats_on(claim)
        run.reports(100, plan, claim, StopReason.FINISHED)

    run.clock.at(59.5, start)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_fast_settings_stay_fast_on_a_remote_store(make_spec):
    spec = make_spec(liveness={"heartbeat_seconds": 0.2, "heartbeat_timeout_seconds": 10})
    assert spec.liveness.remote_look_seconds == 1.0
    assert make_spec(liveness={"heartbeat_timeout_seconds": 6}).liveness.remote_look_seconds == 2.0


@pytest.mark.parametrize("url", [".segue/store", "file:///x", "s3://bucket/models"])
def test_the_clamp_counts_a_look_into_a_store_that_is_remote(make_spec, monkeypatch, url):
    spec = make_spec(store={"url": url}, liveness=LIVENESS)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    is_remote = open_store(StoreSpec(url=url)).is_remote
    assert (spec.store.is_remote, url.startswith("s3:")) == (is_remote, is_remote)
    assert detection_seconds(spec) == HEARTBEAT_TIMEOUT + (LOOK if is_remote else HEARTBEAT)


def test_a_parent_far_away_beats_twice_within_its_timeout(make_spec, tmp_path):
    spec, clock = make_spec(liveness=LIVENESS), FakeClock()
    store = RemoteStore(LocalStore(tmp_path / "store").create())
    register_start(store, spec, clock=clock)
    timeout_seconds = read_parent(store, spec.run_id).timeout_seconds
    parent = ParentHeartbeat(store, spec, clock=clock)
    parent.take_over()
    assert read_parent(store, spec.run_id).timeout_seconds == timeout_seconds == 25
    assert 2 * parent.period_seconds < timeout_seconds
