"""One attempt on several pools: it is requested on each, the first claim trains it, and the others are withdrawn."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.controller.segment import TrainerEnd, conclude
from segue.controller.steps import decide_next, request_stop
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.leftover_starts import withdraw_leftover
from segue.controller.waiting.wait import await_report
from segue.errors import OrchestratorError, StalePlanError
from segue.policy.availability import intervals
from segue.policy.spending import charges_of
from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from segue.trainer.claim import Claim
from tests.controller.test_steps import START
from tests.controller.test_wait import ScriptedOrchestrator, Watched

A, B, C = "segment/a", "segment/b", "segment/c"


class ScriptedPools(ScriptedOrchestrator):
    """An orchestrator with several pools: each start has a handle with its pool, and a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.refusals: dict[str, str] = {}
        self.running: set[str] = set()
        self.missing: set[str] = set()
        self.cancelled: dict[str, str] = {}
        self.cancelled_by_a_person: set[str] = set()

    def submit_again(self, spec, plan, number):
        if plan.deployment in self.missing:
            raise OrchestratorError(what=f"there is no deployment {plan.deployment!r}", fix="deploy it")
        handle = f"{plan.deployment}:{number}"
        self.requests.setdefault(handle, round(self.now()))
        return handle

    def state(self, handle):
        return self.ended.get(handle)

    def is_running(self, handle):
        return handle in self.running

    def refusal(self, handle):
        return self.refusals.get(handle)

    def was_cancelled(self, handle):
        return handle in self.cancelled_by_a_person

    def cancel(self, handle, why, *, reason=StopReason.CANCELLED):
        self.cancelled[handle] = f"{reason}: {why}"


FIRST = "attempt"
"""The handle of the start on the chosen pool."""


@pytest.fixture
def watch(make_spec):
    def make(*, prices=(1.0, 1.0, 1.0), deadline_in=None, **fields):
        policy = {"step_seconds": 1, "changeover_seconds": 10, "detection_seconds": 1, "margin_share": 0}
        spot = [{"deployment": name, "price": price} for name, price in zip((A, B, C), prices, strict=False)]
        deadline = None if deadline_in is None else START + timedelta(seconds=deadline_in)
        common = {"steps": 100, "checkpoints": {"every_steps": 10}, "policy": policy, "deadline": deadline}
        run = Watched(make_spec(pools={"spot": spot}, **common | fields))
        run.child = ScriptedPools()
        run.child.now = run.clock.monotonic
        return run

    return make


def claims(run, plan, *, at, by, on, ends_at=None):
    """The machine of this pool claims the attempt then."""

    def begin():
        claim = run.claim(plan.on_pool(on), flow_run_id=by)
        run.beats_on(claim)
        run.reports(at + 5 if ends_at is None else ends_at, plan, claim, StopReason.FINISHED)

    run.clock.at(at, begin)


def starts_of(run):
    known = read_history(run.log).starts
    return [(entry.number, entry.deployment, entry.outcome) for entry in known if entry.outcome != "requested"]


def kill_parent(run, plan, *, at):
    """A parent waits until then, and is killed."""
    run.clock.at(at, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.wait(plan)
    run.child.requests.clear()


def test_the_attempt_is_requested_on_each_pool_at_its_time_until_it_has_a_machine(watch):
    run = watch(prices=(1.0, 1.05, 2.9))
    plan = run.decide()
    second = plan.pools[1].after_seconds
    assert 0 < second < 200 < plan.pools[2].after_seconds
    run.clock.at(second + 50, lambda: run.child.running.add(FIRST))  # It boots, and nothing more is asked.
    claims(run, plan, at=plan.pools[2].after_seconds + 50, by=FIRST, on=A)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.requests == {f"{B}:2": pytest.approx(second, abs=2)}
    assert run.shown[:2] == [f"waiting for spot capacity ({A})", f"waiting for spot capacity ({A}, {B})"]
    assert run.shown[-2:] == [f"booting ({A})", None]


def test_the_first_machine_that_claims_the_attempt_trains_it_and_the_others_are_withdrawn(watch):
    run = watch()
    plan = run.decide()
    run.child.starting = {f"{C}:3": 20}
    claims(run, plan, at=30, by=f"{B}:2", on=B)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    why = f"{None}: the start on {B} of this attempt came first and trains it"
    assert run.child.cancelled == {FIRST: why, f"{C}:3": why}
    history = read_history(run.log)
    assert starts_of(run) == [(1, A, "withdrawn"), (3, C, "withdrawn")]
    assert [round(entry.seconds) for entry in history.starts if entry.outcome == "withdrawn"] == [0, 10]
    assert history.decisions[0].plan.deployment == B
    assert [each.capacity for each in history.last_reports()] == [Capacity.SPOT]
    with pytest.raises(StalePlanError, match="its end is already reported"):
        run.claim(plan.on_pool(C), flow_run_id=f"{C}:3")  # Its machine comes after the withdrawal.


@pytest.mark.parametrize("has_parent_seen_the_wait", [True, False])
def test_an_attempt_that_ends_between_two_looks_leaves_no_request(watch, has_parent_seen_the_wait):
    run = watch()
    plan = run.decide()
    if not has_parent_seen_the_wait:  # An earlier parent made the requests, and was killed.
        kill_parent(run, plan, at=60)
        run.report(plan, run.claim(plan.on_pool(B), flow_run_id=f"{B}:2"), StopReason.FINISHED)
    else:
        reported = lambda: run.report(plan, run.claim(plan.on_pool(B), flow_run_id=f"{B}:2"), StopReason.FINISHED)  # noqa: E731
        run.clock.at(10, reported)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert set(run.child.cancelled) == {FIRST, f"{C}:3"}


def test_a_parent_that_is_restarted_makes_the_same_requests(watch):
    run = watch(prices=(1.0, 1.05))
    plan = run.decide()
    due = plan.pools[1].after_seconds
    kill_parent(run, plan, at=due + 10)
    run.child.running.add(FIRST)
    claims(run, plan, at=due + 40, by=FIRST, on=A)
    run.wait(plan)
    assert set(run.child.requests) == set(run.child.cancelled) == {f"{B}:2"}


def test_a_restarted_parent_makes_no_request_that_is_not_due_and_none_that_was_withheld(watch):
    run = watch(prices=(1.0, 1.05))
    plan = run.decide()
    due = plan.pools[1].after_seconds
    run.child.running.add(FIRST)  # It boots, so the second pool is not asked when that is due.
    kill_parent(run, plan, at=due + 10)
    claims(run, plan, at=due + 40, by=FIRST, on=A)
    run.wait(plan)
    assert (run.child.requests, run.child.cancelled) == ({}, {})
    assert {each.deployment for each in intervals(read_history(run.log))} == {A}


def test_a_restarted_parent_waits_for_the_pool_that_was_asked_before_its_time_and_not_for_the_one_that_failed(watch):
    run = watch(prices=(1.0, 1.05))
    plan = run.decide()
    run.child.ended[FIRST] = "Crashed"
    run.clock.at(20, lambda: run.beats_on(run.claim(plan.on_pool(B), flow_run_id=f"{B}:2")))
    kill_parent(run, plan, at=25)
    run.child.cancelled_by_a_person = {FIRST}  # So it seems, because its state has no word.
    run.clock.at_every_poll = lambda: None  # The store of the attempt does not answer for a while.
    claimed = read_history(run.log).attempts[0].claim
    claim = Claim(attempt_id=claimed.attempt_id, epoch=claimed.epoch, slot=0)
    run.clock.at(45, lambda: run.report(plan, claim, StopReason.NOTICE))
    report = run.wait(plan)
    assert report.stop_reason is StopReason.NOTICE


def test_a_start_that_is_requested_while_the_others_have_ended_keeps_the_attempt_alive(watch):
    run = watch(prices=(1.0, 1.05), liveness={"heartbeat_seconds": 20})
    plan = run.decide()
    due = plan.pools[1].after_seconds
    run.clock.at(due - 3, lambda: run.child.ended.update({FIRST: "Crashed"}))
    claims(run, plan, at=due + 100, by=f"{B}:2", on=B)
    assert run.wait(plan).stop_reason is StopReason.FINISHED


def test_what_an_attempt_left_that_ended_without_a_parent_is_withdrawn_before_the_next_one(watch):
    run = watch()
    plan = run.decide()
    kill_parent(run, plan, at=10)
    run.report(plan, run.claim(plan.on_pool(B), flow_run_id=f"{B}:2"), StopReason.NOTICE)
    again = run.decide()
    run.child.submit = lambda spec, plan: FIRST
    for _ in range(2):  # The second time finds nothing.
        withdraw_leftover(run.log, run.spec, orchestrator=run.child)
        assert set(run.child.cancelled) == {FIRST, f"{C}:3"}
    assert starts_of(run) == [(1, A, "withdrawn"), (3, C, "withdrawn")]
    assert (again.attempt, len(again.pools)) == (2, 3)


def test_a_trainer_that_ends_before_its_claim_leaves_the_attempt_to_the_other_pools_and_is_quoted_if_none_comes(watch):
    run = watch(prices=(1.0, 1.0))
    plan = run.decide()
    why = "exited with code 1 without a report; it printed: ModuleNotFoundError: No module named 'torch'"
    for pool in (A, B):
        end = TrainerEnd(1, printed="ModuleNotFoundError: No module named 'torch'")
        assert conclude(run.another_log(), plan.on_pool(pool), end, flow_run_id=pool) is None
    run.child.ended = {FIRST: "Crashed", f"{B}:2": "Crashed"}
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (StopReason.LOST, f"the trainer {why}")


def test_where_the_own_pool_is_slow_and_another_one_claims_the_waits_of_both_are_right(watch):
    run = watch(prices=(1.0, 1.0), deadline_in=50_000)
    plan = run.decide()
    run.child.starting = {f"{B}:2": 5}
    claims(run, plan, at=400, by=FIRST, on=A)
    run.wait(plan)
    seen = [(each.deployment, each.is_up, round(each.seconds, -1)) for each in intervals(read_history(run.log))]
    assert (A, False, 400) in seen
    assert (B, True, 400) in seen
    assert charges_of(run.spec, read_history(run.log))[0].seconds == pytest.approx(241, abs=3)  # Then it is given up.


def test_where_a_pool_refuses_the_next_one_is_asked_before_its_time(watch):
    run = watch(prices=(1.0, 1.05, 1.1))
    plan = run.decide()
    run.child.missing.add(B)
    run.child.ended[FIRST] = "Crashed"
    claims(run, plan, at=60, by=f"{C}:3", on=C)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.requests[f"{C}:3"] < 10 < plan.pools[2].after_seconds
    assert read_history(run.log).decisions[0].plan.deployment == C


def test_where_all_pools_refuse_the_attempt_was_refused(watch):
    run = watch()
    plan = run.decide()
    for handle in (FIRST, f"{B}:2", f"{C}:3"):
        run.child.ended[handle], run.child.refusals[handle] = "Crashed", "403 Forbidden: quota"
    report = run.wait(plan)
    assert (report.stop_reason, report.was_refused, report.got_capacity) == (StopReason.NO_CAPACITY, True, False)
    assert report.note == "403 Forbidden: quota"


def test_a_pool_that_never_answers_holds_up_no_other_and_the_wait_ends_as_planned(watch):
    run = watch(liveness={"start_seconds": 300})
    plan = run.decide()
    report = run.wait(plan)
    assert report.stop_reason is StopReason.NO_CAPACITY
    assert run.clock.monotonic() == pytest.approx(plan.start_within_seconds, abs=2)
    assert set(run.child.cancelled) == {FIRST, f"{B}:2", f"{C}:3"}
    assert starts_of(run) == [(1, A, "withdrawn"), (2, B, "withdrawn"), (3, C, "withdrawn")]
    again = decide_next(run.log, run.spec, clock=run.clock).plan
    assert (again.attempt, [each.deployment for each in again.pools]) == (plan.attempt + 1, [A, B, C])


def test_a_slow_start_on_one_pool_has_a_second_one_there_with_a_number_of_its_own(watch):
    run = watch(prices=(1.0, 1.0))
    plan = run.decide()
    run.child.starting = {f"{B}:2": 10}
    claims(run, plan, at=200, by=f"{B}:4", on=B)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.requests == {f"{B}:2": 0, f"{B}:4": pytest.approx(130, abs=2)}
    assert starts_of(run) == [(2, B, "slow"), (1, A, "withdrawn"), (2, B, "start_failed")]


def test_a_start_that_never_claims_is_given_up_and_the_others_go_on(watch):
    run = watch(prices=(1.0, 1.0), liveness={"start_seconds": 5000, "first_step_seconds": 600})
    plan = run.decide()
    run.child.starting = {FIRST: 0}
    run.child.missing.add(A)  # A second start on the pool is refused.
    claims(run, plan, at=1000, by=f"{B}:2", on=B)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert (1, A, "start_failed") in starts_of(run)
    assert read_history(run.log).decisions[0].plan.deployment == B


def test_a_stop_withdraws_every_request(watch):
    run = watch()
    plan = run.decide()
    run.clock.at(20, lambda: request_stop(run.log, reason="by a person"))
    report = run.wait(plan)
    assert report.stop_reason is StopReason.CANCELLED
    assert set(run.child.cancelled) == {FIRST, f"{B}:2", f"{C}:3"}


def test_without_several_pools_nothing_is_requested_twice(watch):
    run = watch(prices=(1.0,))
    plan = run.decide()
    assert plan.pools == ()
    submitted = Submitted(plan, run.child, FIRST)
    claims(run, plan, at=30, by=FIRST, on=A)
    await_report(run.another_log(), run.spec, submitted, clock=run.clock)
    assert (run.child.requests, run.child.cancelled) == ({}, {})
    assert '"pools"' not in plan.model_dump_json()
    assert read_history(run.log).attempts[0].claim.deployment is None


def test_a_machine_that_ended_by_itself_before_another_claimed_is_charged_and_not_named_as_the_cause_of_a_loss(watch):
    run = watch(prices=(1.0, 1.0))
    plan = run.decide()
    run.child.starting = {f"{B}:2": 5}
    run.clock.at(60, lambda: run.child.ended.update({f"{B}:2": "Crashed"}))
    run.clock.at(60, run.child.starting.clear)
    run.clock.at(100, lambda: run.beats_on(run.claim(plan, flow_run_id=FIRST), until=110))
    run.clock.at(111, lambda: run.child.ended.update({FIRST: "Crashed"}))
    report = run.wait(plan)
    assert (report.stop_reason, report.note) == (StopReason.LOST, "its flow run ended as Crashed without a report")
    assert charges_of(run.spec, read_history(run.log))[-1].seconds == pytest.approx(55, abs=5)
