"""A comparison of policies on the same rows of spot, so that differences are paired. The functions are pure: rows and
randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.deadline.optimum import cheapest
from segue.errors import COMMAND_LINE, SpecError
from segue.policy.rules.heuristics import OnDemandOnly, UniformProgress
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Floats, Job
from segue.simulation.rows import Contender, Rows, as_published, outcome_on
from segue.simulation.simulator import SimulationResult

_RESAMPLES = 1000


@dataclass(frozen=True)
class Figures:
    """The results of one policy over all runs. Each cost is divided by the cost of only on-demand on the same rows."""

    policy: str
    cost_share: float
    """The mean; `low` and `high` are its 95 % confidence interval over the random starts."""
    cost_share_low: float
    cost_share_high: float
    cost_share_p5: float
    cost_share_p95: float
    to_uniform_progress: float
    """Mean cost divided by the mean cost of uniform_progress on the same rows, minus one. A negative value is
    cheaper."""
    to_uniform_progress_low: float
    to_uniform_progress_high: float
    to_optimum: float | None
    """Mean cost divided by the least possible cost if all of spot is known in advance; None: not requested."""
    missed: int
    runs: int
    preemptions: float
    sentinel_seconds: float


def contender(text: str, job: Job) -> Contender:
    """The policy written as `name` or `name:parameter=value,parameter=value`.

    Raises:
        SpecError: the policy or the parameter does not exist, or the value is not valid.
    """
    name, _, rest = text.partition(":")
    try:
        policy = named_policy(name, _parameters(rest))
    except ValueError as error:
        raise SpecError(source=COMMAND_LINE, problems=(f"policy {text!r}: {error}",)) from None
    return Contender(text, policy, as_published(name, job))


def compare(
    contenders: Sequence[Contender],
    rows: Sequence[Rows],
    *,
    job: Job,
    random: np.random.Generator,
    with_optimum: bool = False,
    on_policy: Callable[[str], None] = lambda _: None,
) -> list[Figures]:
    """The figures of each policy. `on_policy` is called with the name of each policy."""
    published = as_published("uniform_progress", job)
    on_demand = outcome_on(rows, Contender("on_demand_only", OnDemandOnly(), published)).cost
    usual = outcome_on(rows, Contender("uniform_progress", UniformProgress(), published)).cost
    best = np.concatenate([cheapest(job, r.up, tick_seconds=r.tick_seconds) for r in rows]) if with_optimum else None
    count = len(on_demand)
    weights = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) / count
    figures = []
    for one in contenders:
        on_policy(one.label)
        outcome = outcome_on(rows, one)
        share = outcome.cost / on_demand
        figures.append(_figures(one.label, outcome, share, usual=usual, best=best, weights=weights))
    return figures


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
