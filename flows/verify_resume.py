"""Flow `verify-resume`, the drill: kill and resume a run, and fail when it differs from an undisturbed one."""

from __future__ import annotations

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from segue.tasks.run_artifact import artifact_key

from segue.resume_drill import DrillReport, drill_spec
from segue.spec import RunSpec


@flow(name="verify-resume", flow_run_name="verify-{spec.run_id}", retries=0, persist_result=False)
def verify_resume(spec: RunSpec, *, kills: int = 2) -> State[DrillReport]:
    """Train `spec` twice, once with kills, and compare the final states bit for bit. Does not use the run's store."""
    report = drill_recipe(spec, kills)
    message = f"{report.verdict}: {report.kills} kills, identical={report.identical}, {report.ended}"
    return Completed(message=message) if report.passed else Failed(name="NotContinuous", message=message)


@task(name="drill", retries=0, cache_policy=NO_CACHE)
def drill_recipe(spec: RunSpec, kills: int) -> DrillReport:
    """Run the drill and publish its result as an artifact."""
    report = drill_spec(spec, kills=kills)
    identical = "identical to" if report.identical else "different from"
    lines = [f"**{spec.workload}**: {report.verdict}; final state {identical} the undisturbed run's", ""]
    lines += [f"* resume {number}: {verdict.sentence}" for number, verdict in enumerate(report.verdicts, 1)]
    create_markdown_artifact("\n".join(lines), key=artifact_key(f"{spec.run_id}-drill"), description="Resume drill")
    return report
