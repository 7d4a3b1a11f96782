"""The parent flow: decide, run a segment, judge its resume, until the policy says the run is over."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from segue.tasks.continuity import judge_resume
from segue.tasks.cost import report_cost
from segue.tasks.curve import publish_resume
from segue.tasks.plan import open_run, plan_segment
from segue.tasks.publish import publish_run
from segue.tasks.segment import release_standby, run_segment

from segue.errors import SegueError
from segue.records import SegmentReport
from segue.reports.cost import CostReport
from segue.spec import RunSpec

_PICTURE_SECONDS = 30.0
"""How long the end of a run waits for the picture before the last one."""


@flow(name="train", flow_run_name="{spec.run_id}", retries=0, validate_parameters=True, persist_result=False)
def train(spec: RunSpec, *, accept_drift: bool = False) -> Any:
    """Train `spec` to its goal, in segments, on the capacity that the policy picks.

    Killed and started again with the same run id, it goes on: the run's log is the memory. An attempt that is still
    alive then is waited for; no second one is started.
    """
    try:
        open_run(spec, accept_drift=accept_drift)
    except SegueError as error:
        return Failed(message=str(error))
    has_resumed = False
    shown = None
    while True:
        decision = plan_segment(spec)
        if decision.plan is None:
            break
        if shown is None or shown.state.is_final():
            shown = publish_run.submit(spec)  # Beside the attempt, which does not wait for a picture.
        report = _report_of(run_segment(spec, decision.plan, return_state=True))
        has_resumed |= judge_resume(spec, report) is not None
    release_standby(spec)
    if shown is not None:
        shown.wait(timeout=_PICTURE_SECONDS)  # Lest an older picture comes after the last one.
    publish_run(spec, return_state=True)  # A picture that cannot be published is no reason to call a run failed.
    if has_resumed:
        publish_resume(spec, return_state=True)
    get_run_logger().info("run ended action=%s reason=%s", decision.action, decision.reason)
    message = _with_cost(decision.reason, report_cost(spec, return_state=True))
    if decision.action == "finished":
        return Completed(message=message, data=decision)
    return Failed(name=decision.action.capitalize(), message=message)


def _with_cost(reason: str, state: State[CostReport]) -> str:
    cost = state.result(raise_on_failure=False)
    return f"{reason}; {cost.sentence}" if isinstance(cost, CostReport) and cost.sentence else reason


def _report_of(state: State[SegmentReport]) -> SegmentReport:
    # A preempted attempt's state is Crashed and still carries its report; an exception is a real error and raised.
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result
