"""The deadline policies on real availability. Every policy has the same starts, and is compared with the least possible
cost.

The setting of the published work ("Can't Be Late", NSDI 2024): C = 48 h of work, or 24 h where a trace is short; C/D
from .5 to .95; changeovers from .02 to .4 h; on-demand at three times the spot price; random starts. The baselines run
as published, with free knowledge and no hand-over. plan and slack_age run as the options say.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.workers import workers
from benchmarks.deadline.adversary import adversarial_runs
from benchmarks.deadline.optimum import cheapest
from benchmarks.deadline.paper import hours_against_the_paper
from benchmarks.deadline.speed import runs_per_second
from segue.policies import POLICIES
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Flags, Floats, Job, Knowledge
from segue.simulation.rows import as_published
from segue.simulation.simulator import Harshness, simulate
from segue.simulation.traces import Trace, long_enough, read_traces, windows

HOUR = 3600.0
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CHANGEOVERS_HOURS = (0.02, 0.1, 0.2, 0.4)
PRICE_RATIO = 3.0
NAMES = {"on_demand_only": "on_demand"}
"""Policies whose name in the report differs from the name in a run spec."""
LOST_SECONDS = 300.0
"""Seconds of work that each death loses in the second headline: half of a save interval of ten minutes."""
SLOW_STARTS = (1.2, 1.5)
"""Factor by which the adversary also makes every start longer than the run expects."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The options of the benchmark."""

    traces: Path
    knowledge: Knowledge = "free"
    handover: bool = False
    starts: int = 60
    adversarial: int = 1_000_000
    seed: int = 0
    jobs: int = os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """One job on one trace: the share of the deadline that is work, and the changeover."""

    trace: Trace
    share: float
    changeover_hours: float

    @property
    def job(self) -> Job:
        """Settings of the baselines as published: free knowledge, no hand-over."""
        # A trace must be at least twice as long as the longest deadline, so that random starts differ.
        hours = 48.0 if self.trace.seconds >= 2 * 48 * HOUR / min(SHARES) else 24.0
        return Job(
            total_seconds=hours * HOUR / self.share,
            work_seconds=hours * HOUR,
            changeover_seconds=self.changeover_hours * HOUR,
            price_ratio=PRICE_RATIO,
            knowledge="free",
            handover=False,
        )

    def windows(self, *, starts: int, seed: int) -> Flags:
        name = f"{seed} {self.trace.name} {self.share} {self.changeover_hours}"
        random = np.random.default_rng(zlib.crc32(name.encode()))
        return windows(self.trace, seconds=self.job.total_seconds, count=starts, random=random)


@dataclass(frozen=True)
class Column:
    """The results of one policy in one setting: an element for each start."""

    cost: Floats
    late: int
    spot_hours: float
    on_demand_hours: float
    lost_hours: float


def measure(options: Options, *, say: Say) -> dict[str, Any]:
    """Run everything, and return the report. The report is flat except for one object for each policy."""
    traces = read_traces(options.traces)
    for trace in traces:
        long_enough([trace], seconds=max(setting.job.total_seconds for setting in settings(trace)))
    found: dict[str, dict[str, list[Any]]] = {}
    one = partial(_on_trace, options=options)
    with workers(options.jobs) as pool:
        for done, (trace, columns) in enumerate(zip(traces, pool.map(one, traces), strict=True), 1):
            say(f"{done} of {len(traces)} traces")
            found[trace.name] = columns
        say("against an adversary")
        share = options.adversarial // (8 * len(POLICIES)) + 1
        tried = list(pool.map(partial(adversarial_runs, seed=options.seed), range(8), [share] * 8))
        slow = {factor: _slow_starts(pool, share // 4 + 1, factor, seed=options.seed) for factor in SLOW_STARTS}
    report: dict[str, Any] = {
        "traces": len(traces),
        "runs": len(traces) * len(SHARES) * len(CHANGEOVERS_HOURS) * options.starts,
        "knowledge": options.knowledge,
        "handover": options.handover,
        "price_ratio": PRICE_RATIO,
        "starts": options.starts,
        "seed": options.seed,
        "lost_by_a_death_seconds": LOST_SECONDS,
        "adversarial_runs": sum(part["runs"] for part in tried),
        "adversarial_misses": sum(part["misses"] for part in tried),
        "adversarial_hopeless": sum(part["hopeless"] for part in tried),
        "adversarial_hopeless_unsaid": sum(part["unsaid"] for part in tried),
    }
    for factor, parts in slow.items():
        report |= {
            f"adversarial_{what}_starts_{factor:g}": sum(part[what] for part in parts) for what in ("runs", "misses")
        }
    say("how fast the simulator is")
    report |= runs_per_second() | hours_against_the_paper(traces)
    return report | {NAMES.get(name, name): _judged(found, name) for name in POLICIES}


def _slow_starts(pool: ProcessPoolExecutor, runs_each: int, factor: float, *, seed: int) -> list[dict[str, Any]]:
    # Every draw of a job has few runs: the job decides more than spot.
    parts = max(8, runs_each // 20)
    one = partial(adversarial_runs, seed=seed, start_factor=factor)
    return list(pool.map(one, range(parts), [runs_each * 8 // parts + 1] * parts))


def settings(trace: Trace) -> Iterator[Setting]:
    """Every job that is run on a trace."""
    return (Setting(trace, share, hours) for share in SHARES for hours in CHANGEOVERS_HOURS)


def _on_trace(trace: Trace, *, options: Options) -> dict[str, list[Any]]:
    names = ("optimum", "optimum_with_handover", *POLICIES, *(_with_lost_work(name) for name in POLICIES))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for setting in settings(trace):
        up, job = setting.windows(starts=options.starts, seed=options.seed), setting.job
        columns["optimum"].append(cheapest(job, up, tick_seconds=trace.tick_seconds))
        moves = replace(job, handover=True)
        columns["optimum_with_handover"].append(cheapest(moves, up, tick_seconds=trace.tick_seconds))
        for name in POLICIES:
            # With free knowledge, all are compared in the published setting, in which starts are known.
            knowledge, is_as_in_a_run = options.knowledge, options.knowledge != "free"
            ours = replace(job, knowledge=knowledge, handover=options.handover, has_start_margin=is_as_in_a_run)
            asked = as_published(name, ours)
            for column, lost in ((name, 0.0), (_with_lost_work(name), LOST_SECONDS)):
                made = simulate(
                    named_policy(name),
                    replace(asked, lost_by_a_death_seconds=lost),
                    up,
                    tick_seconds=trace.tick_seconds,
                    harshness=Harshness(lost_by_a_death_seconds=lost),
                )
                columns[column].append(
                    Column(
                        cost=made.cost,
                        late=int(made.is_late.sum()),
                        spot_hours=float(made.spot_seconds.mean()) / HOUR,
                        on_demand_hours=float(made.on_demand_seconds.mean()) / HOUR,
                        lost_hours=float(made.lost_seconds.mean()) / HOUR,
                    )
                )
    return columns


def _with_lost_work(name: str) -> str:
    return f"{name} with lost work"


def _judged(found: dict[str, dict[str, list[Any]]], name: str) -> dict[str, Any]:
    """The figures of one policy over all traces. A ratio is the mean of the ratios of single runs to the same run of
    the other policy. For Uniform Progress, there is also a ratio of all costs.
    """
    columns = [column for of in found.values() for column in of[name]]
    vs = {other: _ratios(found, name, other) for other in ("on_demand_only", "uniform_progress")}
    by_trace = {trace: _vs_optimum(of, name) for trace, of in found.items()}
    optimum = np.concatenate(list(by_trace.values()))
    with_handover = np.concatenate([_vs_optimum(of, name, "optimum_with_handover") for of in found.values()])
    low, high = _interval(list(by_trace.values()))
    lossy = _with_lost_work(name)
    with_lost_work = np.concatenate([_vs_optimum(of, lossy) for of in found.values()])
    columns_with_lost_work = [column for of in found.values() for column in of[lossy]]
    return {
        "cost_vs_on_demand": round(float(vs["on_demand_only"].mean()), 4),
        "cost_vs_optimum": round(float(optimum.mean()), 4),
        "cost_vs_optimum_low": round(low, 4),
        "cost_vs_optimum_high": round(high, 4),
        "cost_vs_optimum_with_handover": round(float(with_handover.mean()), 4),
        "cost_vs_optimum_with_lost_work": round(float(with_lost_work.mean()), 4),
        "vs_uniform_progress_with_lost_work": round(
            _total(found, lossy) / _total(found, _with_lost_work("uniform_progress")), 4
        ),
        "lost_hours_with_lost_work": round(float(np.mean([column.lost_hours for column in columns_with_lost_work])), 3),
        "p95_vs_optimum": round(float(np.quantile(optimum, 0.95)), 4),
        "vs_uniform_progress": round(_total(found, name) / _total(found, "uniform_progress"), 4),
        "mean_vs_uniform_progress": round(float(vs["uniform_progress"].mean()), 4),
        "misses": sum(column.late for column in columns),
        "misses_with_lost_work": sum(column.late for column in columns_with_lost_work),
        "runs": len(optimum),
        "spot_hours": round(float(np.mean([column.spot_hours for column in columns])), 2),
        "on_demand_hours": round(float(np.mean([column.on_demand_hours for column in columns])), 2),
        "by_trace": {trace: round(float(ratios.mean()), 4) for trace, ratios in by_trace.items()},
    }


def _ratios(found: dict[str, dict[str, list[Any]]], name: str, other: str) -> Floats:
    pairs = ((mine, theirs) for of in found.values() for mine, theirs in zip(of[name], of[other], strict=True))
    return np.concatenate([mine.cost / theirs.cost for mine, theirs in pairs])


def _vs_optimum(columns: dict[str, list[Any]], name: str, optimum: str = "optimum") -> Floats:
    pairs = zip(columns[name], columns[optimum], strict=True)
    return np.concatenate([column.cost / best for column, best in pairs])


def _total(found: dict[str, dict[str, list[Any]]], name: str) -> float:
    return sum(float(column.cost.sum()) for of in found.values() for column in of[name])


def _interval(by_trace: list[Floats], *, samples: int = 2000) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean, over traces and not over runs, because runs of one trace overlap and are
    not independent."""
    random = np.random.default_rng(0)
    own = np.array([ratios.mean() for ratios in by_trace])
    means = [own[random.integers(0, len(own), len(own))].mean() for _ in range(samples)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
