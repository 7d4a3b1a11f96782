"""The tasks that publish a check of a run's loss curve, and a plot of a resume, as artifacts."""

from __future__ import annotations

import base64

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from segue.curves.expectations import CurveReport
from segue.curves.expectations import check_curve as check_curve_here
from segue.curves.resume_plot import draw_resume
from segue.markup import Markup
from segue.prefect.ui.artifacts import artifact_key
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="check-curve", retries=0, cache_policy=NO_CACHE)
def check_curve(spec: RunSpec) -> CurveReport:
    """Check a run's loss curve. The artifact `segue-<run>-curve` and the returned record contain the findings."""
    report = check_curve_here(open_log(spec))
    for item in report.failed:
        get_run_logger().warning("curve expectation failed name=%s observed=%s", item.name, item.observed)
    key = artifact_key(f"{spec.run_id}-curve")
    create_markdown_artifact(report.in_markdown(), key=key, description=f"Loss curve check of {spec.run_id}")
    return report


@task(name="publish-resume-point", retries=0, cache_policy=NO_CACHE)
def publish_resume(spec: RunSpec, segment: int | None = None) -> None:
    """Plot the newest resume of a segment, or of the whole run, in the artifact `segue-<run>-resume-point`."""
    png = base64.b64encode(draw_resume(open_log(spec), segment=segment)).decode()
    text = Markup(f"![loss before and after the resume](data:image/png;base64,{png})")
    key = artifact_key(f"{spec.run_id}-resume-point")
    create_markdown_artifact(text, key=key, description=f"Newest resume of {spec.run_id}")
