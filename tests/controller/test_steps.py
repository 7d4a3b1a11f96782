"""A controller depends only on the run's log, and two controllers at once do no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from segue.controller.attempt_ends import declare_lost, settle_verdict
from segue.controller.steps import decide_next, open_run
from segue.errors import DeadlinePassedError, DriftError
from segue.launch.assignment import Assignment
from segue.policy.queueing import Queues
from segue.records import (
    Capacity,
    CheckpointRef,
    CodeFailure,
    Environment,
    Heartbeat,
    Manifest,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
)
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, ReportEntry, VerdictEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore, open_store
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from segue.trainer.claim import Claim, claim_run

ENVIRONMENT = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Run:
    """One run in a real local store, controlled by the test."""

    def __init__(self, spec: RunSpec, clock: FakeClock) -> None:
        self.spec, self.clock = spec, clock
        self.log = open_run(spec, clock=clock)

    def another_log(self, *, before_put: Callable[[], None] | None = None) -> RunLog:
        """The same log in another process; `before_put` is called once, before its first write."""
        pending = [before_put] if before_put else []

        def observer(operation: str, key: str) -> bool:
            if operation == "put_if_absent" and pending:
                pending.pop()()
            return False

        return RunLog(FaultyStore(open_store(self.spec.store), fails=observer), self.spec.run_id, clock=self.clock)

    def decide(self, *, queues: Queues | None = None) -> SegmentPlan:
        plan = decide_next(self.log, self.spec, clock=self.clock, queues=queues).plan
        assert plan is not None
        return plan

    def claim(self, plan: SegmentPlan, *, flow_run_id: str | None = None) -> Claim:
        assignment = Assignment(spec=self.spec, plan=plan, flow_run_id=flow_run_id)
        return claim_run(self.another_log(), assignment, environment=ENVIRONMENT)

    def commit(self, claim: Claim, step: int) -> CheckpointRef:
        manifest = Manifest(
            step=step, samples_seen=step, epoch=0, shards=(), tensor_count=0, components={}, environment=ENVIRONMENT
        )
        facts = {"attempt_id": claim.attempt_id, "manifest": manifest}
        slot = self.log.append(lambda stamp: CommitEntry(**stamp(epoch=claim.epoch), **facts), epoch=claim.epoch)
        return CheckpointRef(slot=slot.number, step=step, attempt_id=claim.attempt_id)

    def beat(self, claim: Claim, **fields: Any) -> None:
        facts = {"counter": 5, "phase": "training", "trainer_pid": 1, "beat_at": self.clock.now()} | fields
        data = Heartbeat(attempt_id=claim.attempt_id, **facts).model_dump_json().encode()
        self.log.store.put(keys.heartbeat_key(self.spec.run_id, claim.attempt_id), data)

    def report(self, plan: SegmentPlan, claim: Claim, reason: StopReason, **fields: Any) -> SegmentReport:
        start = plan.parent.step if plan.parent else 0
        facts = {"segment": plan.segment, "attempt": plan.attempt, "capacity": plan.capacity, "from_step": start}
        report = SegmentReport(attempt_id=claim.attempt_id, stop_reason=reason, **facts, **({"to_step": 7} | fields))
        self.log.append(lambda stamp: ReportEntry(**stamp(epoch=claim.epoch), report=report), epoch=claim.epoch)
        return report

    def resumed(self) -> tuple[SegmentPlan, Claim]:
        """A second segment, claimed, from a checkpoint at step 10."""
        first = self.decide()
        self.commit(self.claim(first), 10)
        declare_lost(self.log, first, why="killed")
        second = self.decide()
        return second, self.claim(second)


@pytest.fixture
def run(make_spec) -> Run:
    return Run(make_spec(steps=100), FakeClock(START))


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of `work(n)` in `count` threads that all start at the same moment."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def body(number: int) -> None:
        start.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_a_plan_without_a_report_is_returned_again(run):
    plan = run.decide()
    before = run.log.next_slot
    run.clock.advance(10_000)
    other = run.spec.model_copy(update={"policy": run.spec.policy.model_copy(update={"name": "on_demand_only"})})
    again = decide_next(run.another_log(), other, clock=run.clock)
    assert (again.plan, run.log.refresh().next_slot) == (plan, before)
    run.claim(plan)
    assert run.decide() == plan


def test_controllers_that_decide_at_once_agree_on_one_plan(run):
    logs = [run.another_log() for _ in range(6)]
    for round_number in range(8):
        decided = in_threads(6, lambda n: decide_next(logs[n], run.spec, clock=run.clock).plan)
        assert decided[0] is not None
        assert decided == [decided[0]] * 6
        assert len(read_history(run.log).decisions) == round_number + 1
        declare_lost(run.log, decided[0], why="the test", got_capacity=False)


def test_a_controller_that_loses_the_race_to_end_a_run_does_not_start_it_again(run):
    for _ in range(run.spec.policy.max_failures):
        plan = run.decide()
        failure = CodeFailure(type="ValueError", message="bad", traceback="...")
        run.report(plan, run.claim(plan), StopReason.FAILED, failure=failure)
    made = []
    late = run.another_log(before_put=lambda: made.append(decide_next(run.log, run.spec, clock=run.clock)))
    second = decide_next(late, run.spec, clock=run.clock)
    assert (made[0].action, second.action, second.reason) == ("failed", "failed", made[0].reason)
    assert [entry.action for entry in read_history(run.log).decisions] == ["run", "run", "failed"]


def test_a_decision_is_made_again_when_the_log_has_grown_meanwhile(run):
    first = run.decide()
    claim = run.claim(first)
    declare_lost(run.log, first, why="silent")
    zombie = run.another_log(before_put=lambda: run.commit(claim, 30))
    decided = decide_next(zombie, run.spec, clock=run.clock).plan
    assert (decided.segment, decided.parent.step) == (1, 30)


def test_the_end_of_a_finished_run_is_recorded_once(run):
    plan = run.decide()
    claim = run.claim(plan)
    run.commit(claim, 100)
    run.report(plan, claim, StopReason.FINISHED, to_step=100)
    made = [decide_next(run.log, run.spec, clock=run.clock) for _ in range(3)]
    assert [each.action for each in made] == ["finished"] * 3
    assert [entry.action for entry in read_history(run.log).decisions] == ["run", "finished"]


def test_a_finished_run_keeps_nothing_that_a_killed_writer_left_half_written(run):
    plan = run.decide()
    claim = run.claim(plan)
    folder = run.log.store.root / "tiny"
    half = [folder / "log" / ".staged-1", folder / "attempts" / claim.attempt_id / "step-000000010" / ".staged-2"]
    for path in half:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half of")
    run.commit(claim, run.spec.steps)
    run.report(plan, claim, StopReason.FINISHED)
    assert decide_next(run.log, run.spec, clock=run.clock).action == "finished"
    assert [path for path in half if path.exists()] == []


def test_the_report_of_a_lost_attempt_uses_its_last_heartbeat(run):
    plan, claim = run.resumed()
    run.commit(claim, 20)
    run.clock.advance(60)
    run.beat(claim, step=34, step_seconds=2.0, last_commit_step=20)
    report = declare_lost(run.log, plan, why="no heartbeat for 30 s")
    assert (report.stop_reason, report.capacity, report.note) == (
        StopReason.LOST,
        Capacity.SPOT,
        "no heartbeat for 30 s",
    )
    assert (report.from_step, report.to_step, report.lost_steps, report.checkpoint.step) == (10, 34, 14, 20)
    assert (report.seconds, report.train_steps, report.train_seconds, report.startup_seconds) == (60, 24, 48, 12)
    assert report.attempt_id == claim.attempt_id


@pytest.mark.parametrize("beat", [None, {"step": 0, "phase": "starting"}, {"step": 12}])
def test_a_heartbeat_older_than_the_log_does_not_reduce_the_report(run, beat):
    plan, claim = run.resumed()
    run.commit(claim, 20)
    if beat is not None:
        run.beat(claim, **beat)
    report = declare_lost(run.log, plan, why="gone")
    assert (report.from_step, report.to_step, report.lost_steps, report.train_steps) == (10, 20, 0, 0)


def test_a_heartbeat_that_cannot_be_read_is_ignored(run):
    plan, claim = run.resumed()
    run.log.store.put(keys.heartbeat_key(run.spec.run_id, claim.attempt_id), b'{"counter": "torn')
    assert declare_lost(run.log, plan, why="gone").to_step == 10


def test_an_attempt_that_never_claimed_is_lost_without_an_attempt_id(run):
    report = declare_lost(run.log, run.decide(), why="no capacity")
    assert (report.attempt_id, report.to_step, report.checkpoint) == (None, 0, None)


def test_declaring_lost_again_changes_nothing(run):
    plan = run.decide()
    logs = [run.another_log() for _ in range(6)]
    reports = in_threads(6, lambda n: declare_lost(logs[n], plan, why=f"controller {n}"))
    assert reports == [reports[0]] * 6
    assert declare_lost(run.log, plan, why="later") == reports[0]
    assert len(read_history(run.log).reports) == 1


def test_the_attempts_own_report_is_kept_when_it_arrives_meanwhile(run):
    plan = run.decide()
    claim = run.claim(plan)
    late = run.another_log(before_put=lambda: run.report(plan, claim, StopReason.NOTICE))
    assert declare_lost(late, plan, why="silent").stop_reason is StopReason.NOTICE
    assert [report.stop_reason for report in read_history(run.log).reports] == [StopReason.NOTICE]


def test_the_attempts_own_report_replaces_an_earlier_lost_report(run):
    plan = run.decide()
    claim = run.claim(plan)
    declare_lost(run.log, plan, why="silent")
    run.report(plan, claim, StopReason.BOUND)
    assert read_history(run.log).report_of(plan.segment, plan.attempt).stop_reason is StopReason.BOUND
    assert declare_lost(run.log, plan, why="again").stop_reason is StopReason.BOUND


def test_an_attempt_that_did_not_resume_needs_no_verdict(run):
    plan = run.decide()
    assert settle_verdict(run.log, declare_lost(run.log, plan, why="never came")) is None
    plan = run.decide()
    assert settle_verdict(run.log, run.report(plan, run.claim(plan), StopReason.BOUND)) is None
    assert read_history(run.log).resumes == ()


def test_a_resume_that_ended_before_a_replayed_step_is_unverified_and_recorded_once(run):
    plan, _ = run.resumed()
    report = declare_lost(run.log, plan, why="killed")
    verdicts = [settle_verdict(run.another_log(), report) for _ in range(3)]
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.UNVERIFIED] * 3
    assert verdicts[0].sentence == "unverified: the attempt ended before a step was replayed"
    assert sum(isinstance(slot.entry, VerdictEntry) for slot in run.log.refresh().slots) == 1


def test_the_attempts_own_verdict_is_kept_when_it_arrives_meanwhile(run):
    plan, claim = run.resumed()
    own = Verdict(kind=VerdictKind.EXACT, rows_compared=8)

    def judge() -> None:
        facts = {"attempt_id": claim.attempt_id, "parent": plan.parent, "verdict": own}
        run.log.append(lambda stamp: VerdictEntry(**stamp(epoch=claim.epoch), **facts))

    report = declare_lost(run.log, plan, why="silent")
    assert settle_verdict(run.another_log(before_put=judge), report) == own
    assert settle_verdict(run.log, report) == own
    assert read_history(run.log).attempts[-1].verdict == own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 200}, "steps was 100, now 200"),
        ({"seed": 4}, "seed was 0, now 4"),
        ({"recipe": "other:build"}, "recipe was segue.testing.recipes:tiny, now other:build"),
        ({"config": {"width": 8}}, "config.width was 4, now 8"),
        ({"config": {}}, "config.width was 4, now not set"),
        ({"config": {"width": 4, "lr": 1}}, "config.lr was not set, now 1"),
    ],
)
def test_a_run_is_not_resumed_with_other_training_settings_without_accept_drift(make_spec, change, said):
    clock = FakeClock(START)
    before = make_spec(steps=100, config={"width": 4})
    slots = open_run(before, clock=clock).next_slot
    changed = make_spec(**({"steps": 100, "config": {"width": 4}} | change))
    with pytest.raises(DriftError) as caught:
        open_run(changed, clock=clock)
    assert f"run tiny was started with another spec: {said}. Fix: give a new run id" in str(caught.value)
    assert open_run(before, clock=clock).next_slot == slots
    assert read_history(open_run(changed, clock=clock, accept_drift=True)).spec == changed


def test_the_log_holds_each_new_spec_once(make_spec):
    clock = FakeClock(START)
    for policy in ({}, {}, {"name": "spot_only"}, {"name": "spot_only"}):
        log = open_run(make_spec(policy=policy), clock=clock)
    assert log.next_slot == 2
    assert read_history(log).spec.policy.name == "spot_only"


@pytest.mark.parametrize("seconds", [-1, 0])
def test_a_new_run_with_a_deadline_in_the_past_is_refused_and_leaves_nothing(make_spec, tmp_path, seconds):
    spec = make_spec(deadline=START + timedelta(seconds=seconds))
    with pytest.raises(DeadlinePassedError):
        open_run(spec, clock=FakeClock(START))
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_deadline_has_passed_resumes_but_refuses_a_new_deadline_in_the_past(make_spec):
    clock, deadline = FakeClock(START), START + timedelta(hours=1)
    open_run(make_spec(deadline=deadline), clock=clock)
    clock.advance(7200)
    log = open_run(make_spec(deadline=deadline), clock=clock)
    assert decide_next(log, read_history(log).spec, clock=clock).plan.capacity is Capacity.ON_DEMAND
    with pytest.raises(DeadlinePassedError):
        open_run(make_spec(deadline=deadline + timedelta(minutes=30)), clock=clock)
    later = make_spec(deadline=deadline + timedelta(hours=3))
    assert read_history(open_run(later, clock=clock)).spec == later


def test_opening_a_run_checks_the_store_and_leaves_only_the_log(make_spec, tmp_path):
    log = open_run(make_spec(), clock=FakeClock(START))
    assert isinstance(log.store, LocalStore)
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == ["store/.segue-store", "store/tiny/log/00000000.json"]
