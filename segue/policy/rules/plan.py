"""Implements the policy PLAN: a dynamic programme with hazards that follow the run's observations.

The module is pure, except that it stores solved tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from segue.policies import PlanParameters
from segue.policy.rules.hazards import factors
from segue.policy.rules.plan_table import Table, solve
from segue.policy.rules.view import Floats, Job, View, Wishes

_GRID = 1.5
"""Ratio between neighbouring hazard factors for which the module solves a table.

An error of a quarter in a hazard costs less than the random variation of a run's cost.
"""
_COARSEST_SECONDS = 600.0
_MOMENTS, _WORK_STEPS, _BOOT_STEPS, _HORIZON_STEPS, _STEPS = 60, 8, 12, 600, 800
_SLACK_STEPS, _MOST_PARTS = 120, 16
_ABSURD = 1.02
"""Largest cost share that PLAN reports.

No plan costs more than on-demand alone, but rounding can give a slightly higher share.
"""


@dataclass(frozen=True)
class Plan(PlanParameters):
    """Chooses the lowest expected cost over the possible futures of spot (see `segue.policy.rules.plan_table`)."""

    most_cells: ClassVar[float] = math.inf
    """Maximum number of cells of a table: steps of remaining time multiplied by steps of slack.

    The maximum limits the time to solve a table.
    """

    _tables: dict[tuple[Job, float, float], Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The solved tables of one job, by the factors of the hazards."""

    def choose(self, view: View) -> Wishes:
        up, down = (self._rounded(values) for values in factors(view.observed, weight=self.prior_weight))
        wishes = np.empty(view.mode.shape, np.int8)
        for pair in set(zip(up.tolist(), down.tolist(), strict=True)):
            these = (up == pair[0]) & (down == pair[1])
            wishes[these] = self._table(view.job, *pair).wish(view.only(these))
        return wishes

    def cost_share(self, view: View) -> float | None:
        """Return the expected cost of one run to the goal, as a share of the cost of on-demand alone.

        The cost counts from the start of the run's job. Return None if almost no work or slack is left, because the
        grid is then too coarse.
        """
        up, down = (self._rounded(values) for values in factors(view.observed, weight=self.prior_weight))
        cost = float(self._table(view.job, float(up[0]), float(down[0])).cost(view)[0])
        whole = float(view.job.price_ratio * (view.work_seconds + view.job.changeover_seconds)[0])
        return min(cost / whole, 1.0) if 0.0 < cost < _ABSURD * whole else None

    def _table(self, job: Job, up_factor: float, down_factor: float) -> Table:
        key = (job, up_factor, down_factor)
        if key not in self._tables:
            if self._tables and next(iter(self._tables))[0] != job:
                self._tables.clear()
            self._tables[key] = table_for(job, up_factor, down_factor, most_cells=self.most_cells)
        return self._tables[key]

    def _rounded(self, values: Floats) -> Floats:
        steps = np.rint(np.log(np.clip(values, 1 / self.reach, self.reach)) / np.log(_GRID))
        return np.asarray(_GRID**steps, float)


@dataclass(frozen=True)
class QuickPlan(Plan):
    """A faster PLAN for the simulations of `segue plan`, with coarser tables if the deadline is far away.

    The mean cost of QuickPlan exceeds the mean cost of PLAN by at most a hundredth of the cost of on-demand.
    """

    most_cells: ClassVar[float] = 50_000.0


def table_for(job: Job, up_factor: float, down_factor: float, *, most_cells: float = math.inf) -> Table:
    """Return the table of a job, whose hazards are the published hazards multiplied by the given factors.

    The grid resolves slacks and boots, but not shorter times between two decisions. The number of steps is bounded, and
    the table treats time beyond its horizon like time at the horizon. If the amount of work permits, the table has at
    most `most_cells` cells (steps of time multiplied by steps of slack).
    """
    slack, work = max(job.total_seconds - job.work_seconds, 0.0), job.work_seconds
    wanted = min(_COARSEST_SECONDS, max(slack, work / 100) / _MOMENTS, work / _WORK_STEPS)
    least = max(job.decides_every_seconds, job.changeover_seconds / _BOOT_STEPS)
    step = max(wanted, least, (work + min(slack, work / 2)) / _STEPS)
    horizon = min(max(_HORIZON_STEPS * step, work + min(slack, work / 2)), job.total_seconds)
    # The slack step is a whole fraction of the time step, so that the cost of waiting is exact.
    parts = min(math.ceil(step * _SLACK_STEPS / max(slack, step)), _MOST_PARTS)
    cells = horizon * max(horizon - work, step) / step**2 * parts
    if cells > most_cells:
        step, parts = max(step, min(step * math.sqrt(cells / parts / most_cells), work / _WORK_STEPS)), 1
        horizon = min(horizon, max(work + min(slack, work / 2), math.sqrt(most_cells) * step))
    near = replace(job, total_seconds=horizon)
    return solve(
        near,
        step_seconds=step,
        slack_step_seconds=step / parts,
        up_factor=up_factor,
        down_factor=down_factor,
    )
