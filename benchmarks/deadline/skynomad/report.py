"""Compares the costs of the published policies in each case with the costs and the optimum of this simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.workers import workers
from benchmarks.deadline.skynomad.cases import SKYNOMAD, THEIR_OPTIMUM, UP_S, Case, read_cases
from benchmarks.deadline.skynomad.optimum import least_cost
from benchmarks.deadline.skynomad.plan import PlanOverPools
from benchmarks.deadline.skynomad.uniform_progress import UniformProgress
from benchmarks.deadline.skynomad.world import run

CENT = 0.005
POOLED = "all"
_SKYNOMAD_ON_V100 = "unified_cost_model_rate_ratio"
"""The name of SkyNomad in the one sweep that the artifact runs with other options."""


class Row(NamedTuple):
    """The costs of one case, counted as in the published tables, without the tick in which the work ends."""

    sweep: str
    point: str
    is_all_on_demand: bool
    """Whether no time is left for a restart, so that every policy costs the same."""
    ours: float
    is_late: bool
    """Whether segue's policy missed the deadline."""
    skynomad: float
    up_s: float
    up_s_published: float
    their_optimum: float
    least: float
    """The exact least cost."""

    @property
    def is_reproduced(self) -> bool:
        """Whether this simulation reproduces the published cost of the published policy."""
        return abs(self.up_s - self.up_s_published) <= CENT


def measure(folder: Path, *, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run every case of the artifact. Return one row for each point of its sweeps, then a row for each sweep, then a
    row for all cases.

    Raises:
        TraceError: the data cannot be read.
    """
    cases = read_cases(folder)
    rows = []
    with workers(jobs) as pool:
        for row in pool.map(row_of, cases, chunksize=4):
            rows.append(row)
            say(f"{len(rows)} of {len(cases)} cases")
    report: dict[str, Any] = {}
    for row in rows:
        for name in (row.point, f"{POOLED} {row.sweep}"):
            report.setdefault(name, []).append(row)
    report[POOLED] = [row for row in rows if not row.is_all_on_demand]
    report = {name: _pooled(found) for name, found in report.items()}
    dearer = [name for name, row in report.items() if row["ours_vs_their_optimum"] > row["skynomad_vs_their_optimum"]]
    return report | {
        "cases": len(rows),
        "late": sum(row.is_late for row in rows),
        "points_dearer_than_skynomad": sum(not name.startswith(POOLED) for name in dearer),
        "not_reproduced": sum(not row.is_reproduced for row in rows),
    }


def row_of(case: Case) -> Row:
    """All costs of one case."""
    ours = run(case, PlanOverPools(case))
    return Row(
        sweep=case.sweep,
        point=case.point,
        is_all_on_demand=case.is_all_on_demand,
        ours=ours.cost_as_published,
        is_late=ours.is_late,
        skynomad=case.published.get(SKYNOMAD, case.published.get(_SKYNOMAD_ON_V100, float("nan"))),
        up_s=run(case, UniformProgress()).cost_as_published,
        up_s_published=case.published[UP_S],
        their_optimum=case.published[THEIR_OPTIMUM],
        least=least_cost(case, charges_last_tick=False),
    )


def _pooled(found: Sequence[Row]) -> dict[str, float]:
    """Ratios of total costs to the published optimum."""
    theirs = sum(row.their_optimum for row in found)
    return {
        "cases": len(found),
        "their_optimum": round(theirs / len(found), 2),
        "ours_vs_their_optimum": round(sum(row.ours for row in found) / theirs, 4),
        "skynomad_vs_their_optimum": round(sum(row.skynomad for row in found) / theirs, 4),
        "up_s_vs_their_optimum": round(sum(row.up_s for row in found) / theirs, 4),
        "least_vs_their_optimum": round(sum(row.least for row in found) / theirs, 4),
    }
