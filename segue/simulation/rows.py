"""Creates rows of spot availability, and computes the outcome of a policy on the rows.

The module is pure: the availability and the random generator are arguments. A comparison also defines what a policy may
observe. The published baselines observe spot at all times and use no hand-over, as in their papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from segue.policies import POLICIES
from segue.policy.rules.heuristics import Policy
from segue.policy.rules.view import Flags, Job
from segue.simulation.simulator import Harshness, SimulationResult, simulate
from segue.simulation.traces import Trace, long_enough, synthetic_availability, windows

SYNTHETIC = "synthetic"
"""The name of rows that do not come from a trace."""


@dataclass(frozen=True)
class Contender:
    """A policy in a comparison, with its label and the job as the policy observes it."""

    label: str
    policy: Policy
    job: Job


@dataclass(frozen=True)
class Rows:
    """Spot availability over time, with one row for each run."""

    name: str
    tick_seconds: float
    up: Flags


def as_published(name: str, job: Job) -> Job:
    """Return the job as a policy observes it.

    The published baselines observe spot at all times, use no hand-over, and know the duration of a start.
    """
    published = replace(job, knowledge="free", handover=False, has_start_margin=False)
    return published if POLICIES[name].as_published else job


def tick_seconds_for(job: Job, *, is_quick: bool = False) -> float:
    """Return the tick in seconds for the simulation of a job.

    The tick is ten minutes, or less if the time or the slack is short. If `is_quick` is true and the time is long, the
    tick is up to twice as long, which changes means by about a hundredth.
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
    """Return synthetic rows, whose hazards are the published hazards multiplied by the given factors."""
    tick = tick_seconds_for(job, is_quick=is_quick)
    up = synthetic_availability(random, runs, job.total_seconds, tick, up_factor=up_factor, down_factor=down_factor)
    return [Rows(SYNTHETIC, tick, up)]


def traced_rows(
    traces: Sequence[Trace], job: Job, *, runs: int, random: np.random.Generator
) -> tuple[list[Rows], list[Trace]]:
    """Return rows from random starts in traces, and the traces that are too short for the job.

    Each trace provides an equal number of rows.

    Raises:
        TraceError: all traces are too short.
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
    """Return the outcome of a contender on all rows, in the order of the rows.

    The outcome does not contain the modes.
    """
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
    """Group the rows with equal tick and length, which can be simulated together."""
    groups: dict[tuple[float, int], list[int]] = {}
    for at, one in enumerate(rows):
        groups.setdefault((one.tick_seconds, one.up.shape[1]), []).append(at)
    return list(groups.values())
