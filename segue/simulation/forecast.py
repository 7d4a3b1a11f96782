"""Simulates a run in advance to forecast its cost, preemptions and lost work. The module is pure.

The module derives a job from the run's own measurements. The module simulates the job on many rows of spot
availability, with the policy and the safety clamp of the run. The module subtracts the margin on the work from the
time, because the margin is a reserve. The margin does not increase the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from segue.policy import clamp
from segue.policy.availability import preemptions
from segue.policy.estimates import Situation
from segue.policy.rules.heuristics import Capped, Greedy, OnDemandOnly, Policy, SpotOnly, UniformProgress
from segue.policy.rules.plan import Plan, QuickPlan
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Floats, Job
from segue.policy.save_interval import PRIOR_LIFE_SECONDS, Cadence, Life, SaveCost, as_asked, interval_seconds
from segue.records import Capacity
from segue.runlog.history import History
from segue.simulation.rows import Contender, Rows, as_published, outcome_on
from segue.simulation.simulator import Harshness, SimulationResult, simulate
from segue.spec import RunSpec

SAMPLES = 12
"""Number of simulated runs in the figure."""
_DAY = 86400.0


@dataclass(frozen=True)
class Expected:
    """The expected results of a policy. Costs are in the currency of the spec's pools and include lost work."""

    policy: str
    cost: float
    cost_p5: float
    cost_p95: float
    cost_share: float
    """The cost as a share of the cost of on-demand alone."""
    late_share: float
    preemptions: float
    finish_seconds: float
    """Mean time in seconds from now to the goal."""


@dataclass(frozen=True)
class Sample:
    """Simulated runs, tick by tick.

    `modes` has the shape (runs, ticks) and the values of `segue.policy.rules.view.Mode`, or -1 after the end of a run.
    """

    tick_seconds: float
    modes: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """The results of the planned policy (the first of `policies`) and of other policies for comparison."""

    policies: tuple[Expected, ...]
    lost_seconds: float
    """Mean seconds of work that a run repeats after deaths without a notice."""
    on_demand_share: float
    """Share of the simulated runs that ever used on-demand."""


def life_of(history: History, *, prior_seconds: float | None) -> Life:
    """Return the expected time between preemptions on spot.

    The result follows from the run's own attempts and a prior. Traces may replace the prior.
    """
    return Life(
        up_seconds=history.seconds_on(Capacity.SPOT),
        preemptions=preemptions(history),
        prior_seconds=prior_seconds or PRIOR_LIFE_SECONDS,
    )


def cadence_of(spec: RunSpec, life: Life, *, save_seconds: float | None) -> Cadence:
    """Return the cadence of the run's commits.

    The run's trainer chooses its cadence by the same rules. `save_seconds` is the assumed cost of a save.
    """
    asked = spec.checkpoints
    if asked.every_steps is not None or asked.every_seconds is not None:
        return as_asked(every_steps=asked.every_steps, every_seconds=asked.every_seconds)
    cost = None if save_seconds is None else SaveCost(save_seconds, 0.0, save_seconds)
    dies = None if spec.policy.name == "on_demand_only" else life
    return interval_seconds(cost, life=dies, max_work_at_risk_seconds=asked.max_work_at_risk_seconds)


def lost_by_a_death_seconds(cadence: Cadence, here: Situation, *, save_seconds: float | None) -> float:
    """Return the mean seconds of work that a death without a notice loses.

    The loss is half of a save interval plus a save in flight.

    If the cost of a save is unknown, the function assumes the longest permitted interval.
    """
    chosen = cadence.interval_seconds if "work_at_risk_seconds" in cadence.numbers else None
    interval = here.at_risk_seconds if chosen is None else chosen
    return min(interval, here.work_seconds or np.inf) / 2 + (save_seconds or 0.0)


def with_cadence(here: Situation, cadence: Cadence, *, save_seconds: float | None) -> Situation:
    """Return the situation of a run with this cadence. The work at risk is at least the interval plus a save."""
    interval = cadence.interval_seconds
    if interval is None:
        return here
    return replace(here, at_risk_seconds=max(here.at_risk_seconds, interval + (save_seconds or 0.0)))


MOMENTS = ("latest_safe_moment", "latest_spot_start")


def latest_moments(spec: RunSpec, here: Situation) -> dict[str, datetime]:
    """Return the latest start of on-demand that meets the deadline, and the latest start of a spot attempt.

    Both moments assume that the run makes no further progress. Each committed hour of work moves both moments one hour
    later. The result is empty if the run has no deadline.
    """
    needed = clamp.needed_for_spot_seconds(here)
    if spec.deadline is None or needed is None or here.work_seconds is None:
        return {}
    return {
        "latest_safe_moment": spec.deadline - timedelta(seconds=here.work_seconds + here.to_on_demand_seconds),
        "latest_spot_start": spec.deadline - timedelta(seconds=needed),
    }


def job_ahead(spec: RunSpec, here: Situation, *, longest_seconds: float | None = None) -> Job:
    """Return the job from the present state of the run to the goal.

    If the run has no deadline or a distant deadline, the time of the job has a generous upper limit. `longest_seconds`
    is the length of the longest trace, if traces are given.
    """
    assert here.work_seconds is not None, "a forecast needs the seconds a step takes"
    work = here.work_seconds / (1 + spec.policy.margin_share)
    generous = 4 * work + 7 * _DAY
    if here.remaining_seconds is None:
        # The limit is half of the longest trace, so that runs can start at different times in the trace.
        total = min(generous, np.inf if longest_seconds is None else longest_seconds / 2)
    else:
        total = min(here.remaining_seconds - (here.work_seconds - work), generous)
    return Job(
        total_seconds=total,
        work_seconds=work,
        changeover_seconds=here.changeover_seconds,
        price_ratio=spec.pools.price_ratio,
        knowledge="sentinel" if spec.policy.handover else "none",
        handover=spec.policy.handover,
        has_start_margin=True,
    )


def forecast(
    spec: RunSpec,
    here: Situation,
    rows: Sequence[Rows],
    *,
    job: Job,
    lost_seconds: float,
    on_policy: Callable[[str], None] = lambda _: None,
) -> Forecast:
    """Simulate the run on `rows` with its own policy, and with other policies for comparison.

    After each preemption, a run repeats up to `lost_seconds` of work. The function calls `on_policy` with the name of
    each policy.
    """
    job = replace(job, lost_by_a_death_seconds=lost_seconds)
    planned, harsh = planned_policy(spec, here, job), harshness_of(here, lost_seconds)
    simulated = [planned]
    # Rules for the move from spot to on-demand need a deadline, and are no comparison if the run never uses spot.
    if spec.deadline is not None and planned.label == spec.policy.name:
        rules: dict[str, Policy] = {"uniform_progress": UniformProgress(), "greedy": Greedy()}
        others = {name: _bounded(rule, spec) for name, rule in rules.items() if name != planned.label}
        simulated += [Contender(name, rule, _job_of(name, job)) for name, rule in others.items()]
    whole = job.price_ratio * (job.work_seconds + job.changeover_seconds)
    # The unit of cost in the job is the price of the cheapest listed pool, which may differ from `spot_price`.
    price = spec.pools.on_demand_price / job.price_ratio / 3600
    outcomes = []
    for one in simulated:
        on_policy(one.label)
        outcomes.append(outcome_on(rows, one, harshness=harsh))
    expected = [_expected(one, outcome, whole, price) for one, outcome in zip(simulated, outcomes, strict=True)]
    if planned.label != "on_demand_only":
        expected.append(_on_demand(job, whole * price))
    gave_up = float((outcomes[0].on_demand_seconds > 0).mean())
    return Forecast(tuple(expected), float(outcomes[0].lost_seconds.mean()), gave_up)


def harshness_of(here: Situation, lost_seconds: float) -> Harshness:
    """Return the conditions that the published setting omits.

    The published setting omits two things: the work that a death loses, and a clamp that requires more than a boot.
    """
    needed = clamp.needed_for_spot_seconds(here)
    reserve = 0.0 if needed is None or here.work_seconds is None else needed - here.work_seconds
    return Harshness(lost_by_a_death_seconds=lost_seconds, start_slack_seconds=reserve)


def sample(spec: RunSpec, here: Situation, rows: Sequence[Rows], *, job: Job, lost_seconds: float) -> Sample:
    """Simulate the first few runs of the table under the planned policy, tick by tick."""
    one, first = planned_policy(spec, here, replace(job, lost_by_a_death_seconds=lost_seconds)), rows[0]
    harsh, tick = harshness_of(here, lost_seconds), first.tick_seconds
    some = simulate(one.policy, one.job, first.up[:SAMPLES], tick_seconds=tick, harshness=harsh, traced=True)
    assert some.modes is not None, "traced"
    return Sample(first.tick_seconds, some.modes)


def planned_policy(spec: RunSpec, here: Situation, job: Job) -> Contender:
    """Return the policy to simulate: the run's policy, or `on_demand_only` if spot is useless.

    Spot is useless if it is not cheaper or the clamp forbids it. In the simulation, PLAN uses coarser tables.
    """
    name = spec.policy.name
    if spec.pools.price_ratio <= 1 or not clamp.permits_spot(here):
        return Contender("on_demand_only", OnDemandOnly(), _job_of("on_demand_only", job))
    if spec.deadline is None and name != "on_demand_only":
        return Contender(name, SpotOnly(), job)
    policy: Policy = named_policy(name, dict(spec.policy.parameters))
    if isinstance(policy, Plan):
        policy = QuickPlan(prior_weight=policy.prior_weight, reach=policy.reach)
    return Contender(name, _bounded(policy, spec), _job_of(name, job))


def _job_of(name: str, job: Job) -> Job:
    """Return the job as a policy observes it. If the run cannot return to spot, no policy can return to spot."""
    return as_published(name, job) if job.may_return else job


def _bounded(policy: Policy, spec: RunSpec) -> Policy:
    bound = spec.policy.max_preemptions
    return policy if bound is None else Capped(policy, bound)


def _expected(one: Contender, outcome: SimulationResult, whole: float, price: float) -> Expected:
    cost: Floats = outcome.cost
    done = np.isfinite(outcome.finished_seconds)
    low, high = np.percentile(cost, [5, 95])
    return Expected(
        policy=one.label,
        cost=float(cost.mean() * price),
        cost_p5=float(low * price),
        cost_p95=float(high * price),
        cost_share=float(cost.mean() / whole),
        late_share=float(outcome.is_late.mean()),
        preemptions=float(outcome.preemptions.mean()),
        finish_seconds=float(outcome.finished_seconds[done].mean()) if done.any() else one.job.total_seconds,
    )


def _on_demand(job: Job, cost: float) -> Expected:
    """Return the result of on-demand alone, which does not depend on spot."""
    takes = job.work_seconds + job.changeover_seconds
    is_late = takes > job.total_seconds + 1e-6
    return Expected("on_demand_only", cost, cost, cost, 1.0, float(is_late), 0.0, takes)


def without_measures(history: History) -> History:
    """Return the history without measured steps, for a simulation with given seconds per step."""
    return replace(history, reports=())
