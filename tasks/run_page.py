"""Task that publishes the last version of a run's page as an artifact."""

from __future__ import annotations

from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run, task_run

from segue.prefect.api import quick_client
from segue.prefect.parent_clock import parent_clock
from segue.prefect.ui.artifacts import page_artifact
from segue.prefect.ui.run_view import picture_of, view_of
from segue.reports.page import page
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
