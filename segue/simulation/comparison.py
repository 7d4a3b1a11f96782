"""Policies compared on the same spot availability. Pure: availability and randomness are given.

Every policy runs on the same rows, so differences are paired. What a policy may observe is part of the comparison: the
published baselines observe spot at all times and hand nothing over, as in their papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from segue.errors import COMMAND_LINE, SpecError
from segue.policies import POLICIES
from segue.policy.rules.heuristics import OnDemandOnly, Policy, UniformProgress
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Flags, Floats, Job
from segue.simulation.optimum import cheapest
from segue.simulation.simulator import Harshness, SimulationResult, simulate
from segue.simulation.synthetic import synthetic_availability
from segue.simulation.traces import Trace, long_enough, windows

SYNTHETIC = "synthetic"
"""The name of rows that come from no trace."""
_RESAMPLES = 1000


@dataclass(frozen=True)
class Contender:
    """A policy in a comparison, with its label and the job as this policy observes it."""

    label: str
    policy: Policy
    job: Job


@dataclass(frozen=True)
class Rows:
    """Availability over time, one row for each run."""

    name: str
    tick_seconds: float
    up: Flags


@dataclass(frozen=True)
class Figures:
    """The results of one policy over all runs. Costs are shares of on-demand only on the same rows."""

    policy: str
    cost_share: float
    """The mean; `low` and `high` are its 95 % confidence interval over the random starts."""
    cost_share_low: float
    cost_share_high: float
    cost_share_p5: float
    cost_share_p95: float
    to_uniform_progress: float
    """Mean cost over that of uniform_progress on the same rows, minus one; negative is cheaper."""
    to_uniform_progress_low: float
    to_uniform_progress_high: float
    to_optimum: float | None
    """Mean cost over the least possible cost with all of spot known in advance; None where not requested."""
    missed: int
    runs: int
    preemptions: float
    lost_seconds: float
    sentinel_seconds: float


def contender(text: str, job: Job) -> Contender:
    """The policy written as `name` or `name:parameter=value,parameter=value`.

    Raises:
        SpecError: there is no such policy or parameter, or not with such a value.
    """
    name, _, rest = text.partition(":")
    try:
        policy = named_policy(name, _parameters(rest))
    except ValueError as error:
        raise SpecError(source=COMMAND_LINE, problems=(f"policy {text!r}: {error}",)) from None
    return Contender(text, policy, as_published(name, job))


def as_published(name: str, job: Job) -> Job:
    """The job as a policy observes it: the published baselines observe spot at all times and hand nothing over."""
    return replace(job, knowledge="free", handover=False) if POLICIES[name].as_published else job


def tick_seconds_for(job: Job, *, is_quick: bool = False) -> float:
    """The tick for simulating a job: ten minutes, or less where the time or the slack is short.

    With `is_quick` up to twice as long where the time is long, which changes means by about a hundredth.
    """
    total, slack = job.total_seconds, job.total_seconds - job.work_seconds
    coarsest = max(total / 1500, min(total / 500, 1200.0) if is_quick else 0.0)
    return max(min(600.0, total / 200, slack / 10), coarsest)


def synthetic_rows(
    job: Job,
    *,
    runs: int,
    random: np.random.Generator,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
    is_quick: bool = False,
) -> list[Rows]:
    """Synthetic rows from the published hazards times these factors."""
    tick = tick_seconds_for(job, is_quick=is_quick)
    up = synthetic_availability(random, runs, job.total_seconds, tick, up_factor=up_factor, down_factor=down_factor)
    return [Rows(SYNTHETIC, tick, up)]


def traced_rows(
    traces: Sequence[Trace], job: Job, *, runs: int, random: np.random.Generator
) -> tuple[list[Rows], list[Trace]]:
    """Rows from random starts in traces, equally many from each, and the traces that are too short for the job.

    Raises:
        TraceError: all of them are too short.
    """
    kept, short = long_enough([trace.finer(tick_seconds_for(job)) for trace in traces], seconds=job.total_seconds)
    counts = [runs // len(kept) + (at < runs % len(kept)) for at in range(len(kept))]
    rows = [
        Rows(trace.name, trace.tick_seconds, windows(trace, seconds=job.total_seconds, count=count, random=random))
        for trace, count in zip(kept, counts, strict=True)
        if count
    ]
    return rows, short


def outcome_on(rows: Sequence[Rows], one: Contender, *, harshness: Harshness | None = None) -> SimulationResult:
    """The outcome of a contender on all rows, in their order; without the modes."""
    parts, order = [], []
    firsts = np.cumsum([0, *(len(r.up) for r in rows)])
    for alike in _alike(rows):
        tick, up = rows[alike[0]].tick_seconds, np.concatenate([rows[at].up for at in alike])
        parts.append(simulate(one.policy, one.job, up, tick_seconds=tick, harshness=harshness))
        order += [np.arange(firsts[at], firsts[at + 1]) for at in alike]
    back = np.argsort(np.concatenate(order))
    names = [name for name in SimulationResult.__dataclass_fields__ if name not in ("modes", "was_hopeless")]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts])[back] for name in names}
    return SimulationResult(**columns, was_hopeless=any(part.was_hopeless for part in parts))


def _alike(rows: Sequence[Rows]) -> list[list[int]]:
    """Which rows can be simulated together: those of one tick and one length."""
    groups: dict[tuple[float, int], list[int]] = {}
    for at, one in enumerate(rows):
        groups.setdefault((one.tick_seconds, one.up.shape[1]), []).append(at)
    return list(groups.values())


def compare(
    contenders: Sequence[Contender],
    rows: Sequence[Rows],
    *,
    job: Job,
    random: np.random.Generator,
    harshness: Harshness | None = None,
    with_optimum: bool = False,
    on_policy: Callable[[str], None] = lambda _: None,
) -> tuple[list[Figures], dict[str, Floats]]:
    """The figures of each contender, and its cost shares run by run. `on_policy` is called with each one's name."""
    published = as_published("uniform_progress", job)
    on_demand = outcome_on(rows, Contender("on_demand_only", OnDemandOnly(), published), harshness=harshness).cost
    usual = outcome_on(rows, Contender("uniform_progress", UniformProgress(), published), harshness=harshness).cost
    best = np.concatenate([cheapest(job, r.up, tick_seconds=r.tick_seconds) for r in rows]) if with_optimum else None
    count = len(on_demand)
    weights = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) / count
    figures, shares = [], {}
    for one in contenders:
        on_policy(one.label)
        outcome = outcome_on(rows, one, harshness=harshness)
        shares[one.label] = outcome.cost / on_demand
        figures.append(_figures(one.label, outcome, shares[one.label], usual=usual, best=best, weights=weights))
    return figures, shares


def _figures(
    label: str, outcome: SimulationResult, share: Floats, *, usual: Floats, best: Floats | None, weights: Floats
) -> Figures:
    low, high = np.percentile(weights @ share, [2.5, 97.5])
    less, more = np.percentile((weights @ outcome.cost) / (weights @ usual) - 1, [2.5, 97.5])
    to_optimum = None
    if best is not None and np.isfinite(best).any():
        known = np.isfinite(best)
        to_optimum = float(outcome.cost[known].mean() / best[known].mean())
    return Figures(
        policy=label,
        cost_share=float(share.mean()),
        cost_share_low=float(low),
        cost_share_high=float(high),
        cost_share_p5=float(np.percentile(share, 5)),
        cost_share_p95=float(np.percentile(share, 95)),
        to_uniform_progress=float(outcome.cost.mean() / usual.mean() - 1),
        to_uniform_progress_low=float(less),
        to_uniform_progress_high=float(more),
        to_optimum=to_optimum,
        missed=int(outcome.is_late.sum()),
        runs=len(share),
        preemptions=float(outcome.preemptions.mean()),
        lost_seconds=float(outcome.lost_seconds.mean()),
        sentinel_seconds=float(outcome.sentinel_seconds.mean()),
    )


def _parameters(text: str) -> dict[str, float]:
    given = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not parameter=value")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"{name.strip()} must be a number (got {value!r})") from None
    return given
