"""PLAN as `segue plan` simulates it: on coarser tables where the time to the deadline is long. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from segue.policy.rules.plan import Plan, table_for
from segue.policy.rules.plan_table import Table
from segue.policy.rules.view import Job

_CELLS = 50_000.0
"""Steps of time left times steps of slack, which is what a table's solution takes."""


@dataclass(frozen=True)
class QuickPlan(Plan):
    """PLAN with the same hazards; mean costs lie above its own by a hundredth of on-demand's or less."""

    def solved(self, job: Job, up_factor: float, down_factor: float) -> Table:
        """The table that PLAN decides by, or one of a bounded size where that would be too large for a quick look."""
        return table_for(job, up_factor, down_factor, most_cells=_CELLS)
