"""The tasks at the end of a run, which publish the last version of its page, and report its cost."""

from __future__ import annotations

from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run, task_run

from segue.controller.standbys.messages import held_by_standbys
from segue.prefect.api import quick_client
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.ui.artifacts import page_artifact, picture_of, view_of
from segue.reports.cost_report import CostReport, cost_report
from segue.reports.page import page
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="publish-run", retries=0, cache_policy=NO_CACHE)
def publish_run(spec: RunSpec) -> None:
    """Publish the run's page as a new version of the artifact `segue-<run>`."""
    runlog = open_log(spec).reload()
    now = parent_clock().now()
    view = view_of(runlog, spec, now=now)
    run_id, task_id = (UUID(str(known)) if known else None for known in (flow_run.id, task_run.id))
    with quick_client() as client:
        artifact = page_artifact(spec, flow_run_id=run_id, task_run_id=task_id)
        artifact.write(
            client, page(view, picture=picture_of(runlog, now=now)), description=f"Run {spec.run_id}, its last page"
        )


@task(name="report-cost", retries=0, cache_policy=NO_CACHE)
def report_cost(spec: RunSpec) -> CostReport:
    """Log and return the cost of the run so far, and the cost of the same work on on-demand alone."""
    runlog = as_parent(open_log(spec).reload, what="log")
    standbys = as_parent(lambda: held_by_standbys(runlog.store, spec.run_id), what="standbys")
    cost = cost_report(spec, read_history(runlog), standbys=standbys)
    facts = " ".join(f"{name}={value}" for name, value in cost.numbers().items() if value not in (None, ""))
    get_run_logger().info("run cost %s", facts)
    return cost
