"""The task that logs the cost of a run and returns the cost as a record."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from segue.controller.standbys.messages import held_by_standbys
from segue.prefect.parent_clock import as_parent
from segue.reports.cost_report import CostReport, cost_report
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="report-cost", retries=0, cache_policy=NO_CACHE)
def report_cost(spec: RunSpec) -> CostReport:
    """Log and return the cost of the run so far, and the cost that the same work would have on on-demand capacity
    alone."""
    runlog = as_parent(open_log(spec).reload, what="log")
    standbys = as_parent(lambda: held_by_standbys(runlog.store, spec.run_id), what="standbys")
    cost = cost_report(spec, read_history(runlog), standbys=standbys)
    facts = " ".join(f"{name}={value}" for name, value in cost.numbers().items() if value not in (None, ""))
    get_run_logger().info("run cost %s", facts)
    return cost
