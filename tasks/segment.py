"""Task of one attempt: dispatch it to its pool, wait for its report."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed
from segue.tasks.prefect_orchestrator import PrefectOrchestrator

from segue.clock import SystemClock
from segue.controller.standby_manager import release_leftover
from segue.controller.wait import Submitted, await_report
from segue.records import SegmentPlan, SegmentReport, StopReason
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError
from segue.stores.retry import patiently


@task(name="segment", task_run_name="{spec.run_id}-seg{plan.segment}-a{plan.attempt}", retries=0, cache_policy=NO_CACHE)
def run_segment(spec: RunSpec, plan: SegmentPlan) -> Any:
    """Run one attempt on its pool; the report is the state's data, and in the log."""
    clock = SystemClock()
    runlog = patiently(open_log(spec, clock=clock).reload, what="log")
    prefect = PrefectOrchestrator()
    submitted = Submitted(plan, prefect, prefect.submit(spec, plan))
    report = await_report(runlog, spec, submitted, clock=clock, with_standbys=True)
    state = state_of(report)
    state.data = report  # Here and not in the flow's state: the engine takes a final state's data for an exception.
    return state


def release_standby(spec: RunSpec) -> None:
    """Leave no standby on the pool behind a run that is over. Best effort: one that starts later leaves by itself."""
    try:
        release_leftover(open_log(spec).reload(), spec, orchestrator=PrefectOrchestrator())
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("no standby was looked for reason=%s", error)


def state_of(report: SegmentReport) -> State[Any]:
    """How an attempt's end shows in the Prefect UI: preemption is a crash with a name, never a failure."""
    words = in_words(report)
    match report.stop_reason:
        case StopReason.FINISHED | StopReason.BOUND:
            return Completed(message=words)
        case StopReason.NOTICE:
            return Crashed(name="Preempted", message=words)
        case StopReason.LOST:
            return Crashed(name="Lost", message=words)
        case StopReason.FENCED:
            return Crashed(name="Fenced", message=words)
        case StopReason.FAILED if report.anomaly is not None:
            return Failed(name="Anomaly", message=words)
        case StopReason.FAILED:
            return Failed(message=words)


def in_words(report: SegmentReport) -> str:
    """One line for the UI; for a failure, the traceback of the user's code."""
    line = f"{report.stop_reason} at step {report.to_step} on {report.capacity}, {report.lost_steps} steps lost"
    if report.note:
        line += f"; {report.note}"
    return f"{line}\n{report.failure.traceback}" if report.failure else line
