"""Simulates the rest of a run in advance.

`segue plan` shows the result. The module is pure: the history, the time and the traces are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from segue.errors import HopelessPlanError, SpecError
from segue.policy import clamp, estimates, pool_choice
from segue.policy.estimates import Situation
from segue.policy.pool_outlook import Outlook, pool_outlook
from segue.policy.rules.view import Job
from segue.policy.spending import charges_of, with_transfer
from segue.records import Capacity
from segue.runlog.history import History
from segue.simulation import feasibility, forecast
from segue.simulation.forecast import Forecast, Sample, without_measures
from segue.simulation.rows import Rows, synthetic_rows, traced_rows
from segue.simulation.traces import Trace
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec
from segue.units import duration, money

PRIOR = "prior"
"""The name of synthetic traces from published hazards."""
_LONGEST_SECONDS = 100 * 365.25 * 86400


@dataclass(frozen=True)
class Plan:
    """The expected results of a run."""

    facts: dict[str, Any]
    """Cost, lateness, preemptions, lost work, save interval and latest moments.

    Times are in seconds or in ISO format.
    """
    forecast: Forecast
    """The forecast of the planned policy and of other policies."""
    sample: Sample
    """The course of twelve simulated runs, tick by tick."""
    latest_safe_moment: datetime | None
    """The latest time at which on-demand has to start if the run commits no more work.

    The value is None without a deadline.
    """


@dataclass(frozen=True)
class _Asked:
    """The run to plan, before the simulation."""

    spec: RunSpec
    history: History
    here: Situation
    now: datetime
    step_seconds: float
    basis: str
    """The source of the seconds per step, in words."""

    @property
    def priced_pools(self) -> PoolSpec:
        """The pools at the prices of the spec instead of the prices in the log.

        The caller may have updated the spec's prices.
        """
        return with_transfer(self.spec.pools, self.history)


def plan_ahead(
    spec: RunSpec,
    history: History,
    *,
    now: datetime,
    traces: Sequence[Trace] = (),
    step_seconds: float | None = None,
    save_seconds: float | None = None,
    runs: int = 200,
    seed: int = 0,
    notes: Sequence[str] = (),
    on_policy: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Simulate the rest of a run on traces.

    Without traces, the function uses synthetic traces from published hazards. `step_seconds` replaces the measured step
    time of the run. `notes` come before the notes that the simulation adds. The function calls `on_policy` with the
    name of each simulated policy.

    Raises:
        DeadlinePassedError, HopelessPlanError: the requested run is infeasible. The message contains the reason.
        SpecError: the step time is not known, or has an absurd value.
    """
    asked = _asked(spec, history, step_seconds, now=now)
    here, given = asked.here, list(traces)
    spec = asked.spec.model_copy(update={"pools": asked.priced_pools})
    life = forecast.life_of(asked.history, prior_seconds=_mean_life(given))
    feasibility.refuse_hopeless(spec, here, now=asked.now, life_seconds=life.mean_seconds, save_seconds=save_seconds)
    cadence = forecast.cadence_of(spec, life, save_seconds=save_seconds)
    lost = forecast.lost_by_a_death_seconds(cadence, here, save_seconds=save_seconds)
    here = forecast.with_cadence(here, cadence, save_seconds=save_seconds)
    job = forecast.job_ahead(spec, here, longest_seconds=max((t.seconds for t in given), default=None))
    rows, found = _rows(given, job, runs=runs, seed=seed)
    expected = forecast.forecast(spec, here, rows, job=job, lost_seconds=lost, on_policy=on_policy)
    moments = forecast.latest_moments(spec, here)
    together = pool_outlook(asked.spec, asked.history, here, now=asked.now)
    found += _notes_on(asked, expected, job)
    if spec.pools.price_ratio <= 1:
        found += ("no spot pool is cheaper than on-demand",)
    elif not clamp.permits_spot(here):
        missing = (clamp.needed_for_spot_seconds(here) or 0.0) - (here.remaining_seconds or 0.0)
        later = duration(missing)
        found += (f"the safety clamp permits no spot attempt; for a spot attempt, the deadline must be {later} later",)
    latest = {name: moments[name].isoformat() if name in moments else None for name in forecast.MOMENTS}
    facts = _facts(asked, expected, job=job) | latest
    facts |= {"cadence": cadence.reason, "cadence_interval_seconds": cadence.interval_seconds}
    facts |= {"life_seconds": life.mean_seconds, "lost_by_a_death_seconds": lost}
    names = [r.name for r in rows] if given else [PRIOR]
    facts |= {"pools": _pools(asked, here, together), "plans_pools_together": together is not None}
    facts |= {"traces": names, "runs": runs, "seed": seed, "notes": [*notes, *found]}
    drawn = forecast.sample(spec, here, rows, job=job, lost_seconds=lost)
    return Plan(facts, expected, drawn, moments.get("latest_safe_moment"))


def _asked(spec: RunSpec, history: History, seconds: float | None, *, now: datetime) -> _Asked:
    spec.require_future_deadline(now)
    if seconds is not None:
        history = without_measures(history)
        policy = spec.policy.model_copy(update={"step_seconds": seconds})
        spec = spec.model_copy(update={"policy": policy})
    rate = estimates.step_seconds(spec, history)
    if rate is None:
        problem = (
            "policy.step_seconds: is not set, and no run has measured it; set it, or give --step-seconds or --work"
        )
        raise SpecError(source="the plan", problems=(problem,))
    if history.is_finished(spec):
        why = f"run {spec.run_id} has committed step {history.committed_step} of {spec.steps}: no work is left."
        raise HopelessPlanError(reason="nothing_left", why=why, fix="set more steps, or another run_id.")
    if (spec.steps - history.committed_step) * rate > _LONGEST_SECONDS:
        problem = f"{spec.steps} steps of {rate:.4g} s are more than a hundred years; give fewer steps or shorter ones"
        raise SpecError(source="the plan", problems=(problem,))
    measured = any(report.train_steps > 0 for report in history.last_reports())
    basis = "as given" if seconds is not None else "measured by the run" if measured else "policy.step_seconds"
    here = estimates.situation(spec, history, now=now)
    return _Asked(spec, history, here, now, rate, basis)


def _pools(asked: _Asked, here: Situation, together: Outlook | None) -> list[dict[str, Any]]:
    """Return the spot pools in the order of the next attempt's requests. Pools without a request come last."""
    spec, history = asked.spec, asked.history
    planned = together.pool if together is not None else None
    choice = planned or pool_choice.choose_pool(spec, history, here, now=asked.now)
    after = {each.deployment: each.after_seconds for each in choice.requests} or {choice.deployment: 0.0}
    if together is not None and not together.waits_seconds:
        after = {}
    priced = asked.priced_pools
    pools = pool_choice.pools_of(priced, history, here, now=asked.now)
    paid = {pool.deployment: pool_choice.paid_per_hour_of_work(pool, here=here) for pool in pools}
    found = [
        {
            "deployment": pool.deployment,
            "price": spec.pools.price(Capacity.SPOT, pool.deployment),
            "cost_of_useful_hour": paid[pool.deployment],
            "mean_life_seconds": pool.life_seconds,
            "mean_wait_seconds": pool.wait_seconds,
            "asked_after_seconds": after.get(pool.deployment),
            "is_dearer_than_on_demand": (pool.price if together is not None else paid[pool.deployment])
            >= priced.on_demand_price,
        }
        for pool in pools
    ]
    asked_at = {name: at for at, name in enumerate(after)}
    return sorted(found, key=lambda each: asked_at.get(each["deployment"], len(after)))


def _notes_on(asked: _Asked, expected: Forecast, job: Job) -> tuple[str, ...]:
    """Return notes on the limitations of the results."""
    spec, history = asked.spec, asked.history
    notes: tuple[str, ...] = ()
    cap, cost = spec.budget.per_run, expected.policies[0].cost
    left = None if cap is None else cap - sum(charge.cost for charge in charges_of(spec, history))
    if left is not None and cost > left:
        notes += (f"the budget has {money(left, spec.pools.currency)} left, which does not pay for the expected cost",)
    if spec.deadline is None and expected.on_demand_share > 0:
        notes += (
            f"without a deadline a run waits for spot; {expected.on_demand_share:.0%} of the simulated runs had too "
            f"little of it in {duration(job.total_seconds)} and are counted as finished on on-demand",
        )
    if spec.pools.has_transfer_prices and history.newest is None:
        notes += ("the cost for data between machines and store is missing: no checkpoint has shown its size yet",)
    if len(spec.pools.spot) > 1:
        notes += ("of several spot pools only the cheapest is simulated; a run that asks them all waits for less time",)
    return notes


def _rows(given: list[Trace], job: Job, *, runs: int, seed: int) -> tuple[list[Rows], tuple[str, ...]]:
    random = np.random.default_rng(seed)
    if not given:
        return synthetic_rows(job, runs=runs, random=random, is_quick=True), ()
    rows, short = traced_rows(given, job, runs=runs, random=random)
    return rows, tuple(f"trace {trace.name} is not used: it covers only {duration(trace.seconds)}" for trace in short)


def _mean_life(given: list[Trace]) -> float | None:
    lives = [life for life in (trace.mean_up_seconds() for trace in given) if life is not None]
    return sum(lives) / len(lives) if lives else None


def _facts(asked: _Asked, expected: Forecast, *, job: Job) -> dict[str, Any]:
    spec, here, first = asked.spec, asked.here, expected.policies[0]
    hours = (job.work_seconds + job.changeover_seconds) / 3600
    return {
        "run": spec.run_id,
        "policy": spec.policy.name,
        "comes_to": first.policy,
        "now": asked.now.isoformat(),
        "currency": spec.pools.currency,
        "committed_step": asked.history.committed_step,
        "steps": spec.steps,
        "step_seconds": asked.step_seconds,
        "step_seconds_basis": asked.basis,
        "work_seconds": job.work_seconds,
        "changeover_seconds": job.changeover_seconds,
        "deadline": spec.deadline.isoformat() if spec.deadline else None,
        "remaining_seconds": here.remaining_seconds,
        "slack_seconds": here.slack_seconds,
        "cost": first.cost,
        "cost_p5": first.cost_p5,
        "cost_p95": first.cost_p95,
        "cost_share": first.cost_share,
        "on_demand_cost": hours * asked.priced_pools.on_demand_price,
        "late_share": first.late_share if spec.deadline else None,
        "preemptions": first.preemptions,
        "lost_seconds": expected.lost_seconds,
        "finish": (asked.now + timedelta(seconds=first.finish_seconds)).isoformat(),
    }
