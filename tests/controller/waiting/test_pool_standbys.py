"""Standbys on several spot pools: the first one with a machine takes over, from on-demand or from a dearer pool."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.controller.standbys.messages import newest_commands
from segue.controller.standbys.pool_standbys import release_leftover
from segue.controller.steps import decide_next
from segue.policy.availability import intervals
from segue.policy.handover import CHEAPER_SPOT, SPOT_AGAIN
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.history import read_history
from segue.trainer.claim import Claim
from tests.controller.test_standby_manager import NEVER_BACK, POLICY, StandbyRun
from tests.controller.test_steps import START

A, B, C = "segment/a", "segment/b", "segment/c"
BOUND, FINISHED = StopReason.BOUND, StopReason.FINISHED


@pytest.fixture
def standby_run(make_spec):
    """A run on on-demand with three spot pools, of which C costs more than on-demand."""

    def make(**policy) -> StandbyRun:
        pools = {"spot": [{"deployment": name, "price": price} for name, price in ((A, 1.0), (B, 1.5), (C, 9.0))]}
        fields = {"steps": 100, "checkpoints": {"every_steps": 10}, "policy": POLICY | policy, "pools": pools}
        run = StandbyRun(make_spec(deadline=START + timedelta(seconds=20_000), **fields))
        run.commit(run.training, 20)
        return run

    return make


class SpotRun(StandbyRun):
    """A run that trains on one of its spot pools."""

    def __init__(self, spec, *, on: str) -> None:
        self._on = on
        super().__init__(spec)

    def first_attempt(self) -> tuple[SegmentPlan, Claim]:
        plan = self.decide()
        return plan, self.claim(plan.on_pool(self._on))


@pytest.fixture
def spot_run(make_spec):
    def make(*, on: str, deadline_in: float | None = 20_000.0, prices=(1.0, 1.5), **policy) -> SpotRun:
        spot = [{"deployment": name, "price": price} for name, price in zip((A, B), prices, strict=False)]
        fields = {"steps": 400, "checkpoints": {"every_steps": 10}, "policy": POLICY | policy, "pools": {"spot": spot}}
        deadline = None if deadline_in is None else START + timedelta(seconds=deadline_in)
        run = SpotRun(make_spec(deadline=deadline, **fields), on=on)
        run.commit(run.training, 20)
        return run

    return make


@pytest.mark.parametrize("deadline_in", [20_000.0, None])
def test_a_run_on_a_dear_pool_hands_over_to_a_standby_on_a_cheaper_one(spot_run, deadline_in):
    run = spot_run(on=B, deadline_in=deadline_in)
    run.standby_enters(300, "here")
    run.standby_enters(330, "ready")
    run.when_recalled(BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND
    assert deployments(run) == {"spare0": A}
    handover = read_history(run.log).handovers[0]
    assert (handover.standby, handover.deployment, handover.reason) == ("spare0", A, CHEAPER_SPOT)
    decision = decide_next(run.log, run.spec, clock=run.clock)
    plan = decision.plan
    assert (plan.standby, plan.deployment, plan.pools, decision.reason) == ("spare0", A, (), CHEAPER_SPOT)
    up = [each for each in intervals(read_history(run.log)) if each.is_up]
    assert [(each.deployment, each.has_ended) for each in up] == [(B, False)]


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"on": A}, {}),
        ({"on": B}, {"handover": False}),
        ({"on": B, "prices": (1.0, 1.01)}, {}),
    ],
    ids=["on the cheapest", "no hand-over", "saves too little"],
)
def test_a_run_that_gains_nothing_sends_no_standby(spot_run, fields, policy):
    run = spot_run(**fields, **policy)
    run.reports_at(200, FINISHED)
    run.wait_with_standbys()
    assert run.sent == []


@pytest.mark.matrix
def test_when_the_deadline_requires_on_demand_no_standby_takes_over(spot_run):
    run = spot_run(on=B, deadline_in=5200.0)
    run.standby_enters(500, "here")
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    assert run.handovers == []
    assert run.command()[0] == "leave"
    assert decide_next(run.log, run.spec, clock=run.clock).plan.capacity is Capacity.ON_DEMAND


def kill_parent(run) -> None:
    """The parent dies while its standbys wait; it can write nothing more."""
    run.clock.at(20, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    run.is_store_down = lambda operation, key: run.clock.monotonic() >= 20 and operation == "put"
    with pytest.raises(KeyboardInterrupt):
        run.wait_with_standbys()
    run.is_store_down = lambda operation, key: False


def deployments(run) -> dict[str, str]:
    found = newest_commands(run.log.store, run.spec.run_id)
    return {command.standby: command.deployment for command in found}


def test_a_standby_waits_on_each_pool_and_the_first_with_a_machine_takes_over(standby_run):
    run = standby_run()
    run.standby_enters(30, "here", "spare1")
    run.standby_enters(60, "ready", "spare1")
    run.when_recalled(BOUND)
    assert run.wait_with_standbys().stop_reason is BOUND
    assert deployments(run) == {"spare0": A, "spare1": B}
    assert run.handovers == ["spare1"]
    assert run.pool["spare0"].cancelled == ["another standby has a machine"]
    assert run.command("spare0")[0] == "leave"
    assert run.pool["spare1"].cancelled == []
    plan = decide_next(run.log, run.spec, clock=run.clock).plan
    assert (plan.standby, plan.deployment, plan.pools) == ("spare1", B, ())


def test_of_two_machines_at_once_one_is_given_back(standby_run):
    run = standby_run()
    for standby in ("spare0", "spare1"):
        run.standby_enters(30, "here", standby)
        run.standby_enters(60, "ready", standby)
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    assert run.handovers == ["spare0"]
    assert run.command("spare1") == ("leave", "another standby has a machine")


@pytest.mark.matrix
def test_where_the_one_with_a_machine_is_gone_all_pools_are_asked_again_after_one_pause(standby_run):
    run = standby_run()
    run.standby_enters(30, "here", "spare1")
    run.standby_enters(50, "gone", "spare1")
    run.reports_at(700, FINISHED)
    run.wait_with_standbys()
    assert deployments(run) == {"spare0": A, "spare1": B, "spare2": A, "spare3": B}
    assert [round(at) for _, at in run.sent] == [0, 0, 650, 650]
    assert [run.pool[name].cancelled for name in ("spare2", "spare3")] == [["on-demand has ended"]] * 2


def test_a_parent_that_is_restarted_adopts_the_standby_of_each_pool(standby_run):
    run = standby_run()
    kill_parent(run)
    run.standby_enters(40, "ready", "spare1")
    run.when_recalled(BOUND)
    run.wait_with_standbys()
    assert run.handovers == ["spare1"]
    assert set(run.pool) == {"spare0", "spare1"}
    plan = decide_next(run.log, run.spec, clock=run.clock)
    assert (plan.plan.standby, plan.reason) == ("spare1", SPOT_AGAIN)


def test_after_a_restart_a_standby_on_a_pool_that_is_no_longer_wanted_is_cancelled(spot_run):
    run = spot_run(on=B)
    kill_parent(run)
    assert deployments(run) == {"spare0": A}
    run.report(run.plan, run.training, StopReason.LOST)
    run.plan = run.decide()
    run.training = run.claim(run.plan.on_pool(A))  # The cheapest pool gives a machine itself.
    run.beats_on(run.training)
    run.reports_at(run.clock.monotonic() + 30, FINISHED)
    run.wait_with_standbys()
    assert run.command("spare0") == ("leave", "a standby on this pool is no longer wanted")
    assert run.pool["spare0"].cancelled == ["a standby on this pool is no longer wanted"]


@pytest.mark.matrix
@pytest.mark.parametrize("pools", [1, 3])
def test_a_policy_that_wants_no_spot_starts_as_many_machines_on_several_pools_as_on_one(make_spec, pools):
    spot = {"spot": [{"deployment": name, "price": 1.0} for name in (A, B, C)[:pools]]}
    fields = {"steps": 100, "checkpoints": {"every_steps": 10}, "policy": POLICY | NEVER_BACK, "pools": spot}
    run = StandbyRun(make_spec(deadline=START + timedelta(seconds=20_000), **fields))
    run.commit(run.training, 20)
    for number in range(9):
        run.standby_enters(0, "here", f"spare{number}")
    run.reports_at(1900, FINISHED)
    run.wait_with_standbys()
    rounds = sorted({round(at, -1) for _, at in run.sent})
    assert len(rounds) == 3
    assert rounds[1] == pytest.approx(600, abs=10)


def test_what_a_killed_parent_left_on_the_pools_is_cancelled_when_the_run_is_over(standby_run):
    run = standby_run()
    kill_parent(run)
    run.report(run.plan, run.training, FINISHED)
    release_leftover(run.log, run.spec, orchestrator=run.pools)
    assert all(run.command(name) == ("leave", "the run is over") for name in ("spare0", "spare1"))
    assert all(run.pool[name].cancelled[-1:] == ["the run is over"] for name in ("spare0", "spare1"))
