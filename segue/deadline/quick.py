"""PLAN as `segue plan` simulates it: on coarser tables where the time to the deadline is long. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segue.deadline.plan import Plan, table_for
from segue.deadline.table import Table, solve
from segue.deadline.view import Job

_CELLS = 50_000.0
"""Steps of time left times steps of slack, which is what a table's solution takes."""
_STEPS = 500
"""Of time left: each takes its time, however few the steps of slack are."""
_FINE_SECONDS = 600.0
"""The step of PLAN's own tables for long jobs, as long as they are small enough."""
_BOOT_STEPS = 12


@dataclass(frozen=True)
class QuickPlan(Plan):
    """PLAN with the same hazards; mean costs lie above its own by a hundredth of on-demand's or less."""

    def solved(self, job: Job, up_factor: float, down_factor: float) -> Table:
        """The table that PLAN decides by, or one of a bounded size where that would be too large for a quick look."""
        slack = max(job.total_seconds - job.work_seconds, 0.0)
        step = max(math.sqrt(job.total_seconds * slack / _CELLS), job.total_seconds / _STEPS)
        if step <= _FINE_SECONDS:
            return table_for(job, up_factor, down_factor)
        step = max(step, job.changeover_seconds / _BOOT_STEPS)
        return solve(job, step_seconds=step, slack_step_seconds=step, up_factor=up_factor, down_factor=down_factor)
