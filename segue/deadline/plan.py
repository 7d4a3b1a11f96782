"""PLAN: the dynamic programme's choice, with hazards that follow what the run sees. Pure; tables are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from segue.deadline.hazards import factors
from segue.deadline.table import Table, solve
from segue.deadline.view import Floats, Job, View, Wishes

_GRID = 1.5
"""Between two factors that tables are solved for: a hazard off by a quarter costs less than the noise of one run."""
_COARSEST_SECONDS = 600.0
_SLACK_STEPS, _BOOT_STEPS, _STEPS = 60, 12, 800


@dataclass(frozen=True)
class Plan:
    """The cheapest expectation over what spot may do next (see `segue.deadline.table`)."""

    prior_weight: float = 16.0
    """How many ended spells the published hazards count for against the run's own."""
    reach: float = 4.0
    """The largest factor by which a run's own hazards may differ from the published ones."""

    comes_back: ClassVar[bool] = True

    def choose(self, view: View) -> Wishes:
        up, down = (self._rounded(values) for values in factors(view.seen, weight=self.prior_weight))
        wishes = np.empty(view.mode.shape, np.int8)
        for pair in set(zip(up.tolist(), down.tolist(), strict=True)):
            these = (up == pair[0]) & (down == pair[1])
            wishes[these] = table_for(view.job, *pair).wish(view.only(these))
        return wishes

    def cost_share(self, view: View) -> float:
        """What one run can expect to pay from here to its goal, of on-demand's price for it."""
        up, down = (self._rounded(values) for values in factors(view.seen, weight=self.prior_weight))
        table = table_for(view.job, float(up[0]), float(down[0]), with_costs=True)
        whole = view.job.price_ratio * (view.work_seconds + view.job.changeover_seconds)
        return float(table.cost(view)[0] / whole[0])

    def _rounded(self, values: Floats) -> Floats:
        steps = np.rint(np.log(np.clip(values, 1 / self.reach, self.reach)) / np.log(_GRID))
        return np.asarray(_GRID**steps, float)


@lru_cache(maxsize=64)
def table_for(job: Job, up_factor: float, down_factor: float, *, with_costs: bool = False) -> Table:
    """The table of a job for hazards by these factors of the published ones."""
    return solve(
        job, step_seconds=_step_seconds(job), up_factor=up_factor, down_factor=down_factor, with_costs=with_costs
    )


def _step_seconds(job: Job) -> float:
    """Fine enough to tell slacks apart, coarse enough to be solved at once."""
    slack = max(job.total_seconds - job.work_seconds, job.total_seconds / 100)
    finest = max(job.total_seconds / _STEPS, job.changeover_seconds / _BOOT_STEPS)
    return max(min(_COARSEST_SECONDS, slack / _SLACK_STEPS), finest)
