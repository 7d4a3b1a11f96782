"""Flow `train`, the parent: decide, run a segment, judge its resume, until a decision ends the run."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed
from segue.tasks.continuity import judge_resume
from segue.tasks.cost import report_cost
from segue.tasks.curve import publish_resume
from segue.tasks.plan import open_run, plan_segment
from segue.tasks.run_artifact import publish_run
from segue.tasks.segment import release_standby, run_segment

from segue.controller.parent import drive
from segue.errors import SegueError
from segue.policy.decide import Decision
from segue.records import SegmentPlan, SegmentReport, Verdict
from segue.reports.cost import CostReport
from segue.spec import RunSpec

_PUBLISH_SECONDS = 30.0
"""How long the end of a run waits for an artifact that is still being published."""


@flow(name="train", flow_run_name="{spec.run_id}", retries=0, validate_parameters=True, persist_result=False)
def train(spec: RunSpec, *, accept_drift: bool = False, requested_at_slot: int | None = None) -> Any:
    """Train `spec` to its goal, in segments, on the capacity that the policy selects.

    Started again with the same run id, it resumes the run from the run's log. If an attempt is still alive then, it
    waits for that one and starts no second one. `requested_at_slot` is the next slot of the log when the start was
    requested: a stop of the run after that is not undone.
    """
    try:
        open_run(spec, accept_drift=accept_drift, requested_at_slot=requested_at_slot)
    except SegueError as error:
        return Failed(message=str(error))
    steps = _Tasks(spec)
    decision, has_resumed = drive(steps)
    release_standby(spec)
    steps.finish_publishing()
    publish_run(spec, return_state=True)  # The returned state is ignored: a failed artifact must not fail the run.
    if has_resumed:
        publish_resume(spec, return_state=True)
    get_run_logger().info("run ended action=%s reason=%s", decision.action, decision.reason)
    message = _with_cost(decision.reason, report_cost(spec, return_state=True))
    if decision.action == "finished":
        return Completed(message=message, data=decision)
    if decision.action == "stopped":
        return Cancelled(message=message)
    return Failed(name=decision.action.capitalize(), message=message)


class _Tasks:
    """The parent's steps, each a task in the Prefect UI."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._publishing: PrefectFuture[None] | None = None

    def decide(self) -> Decision:
        return plan_segment(self._spec)

    def run(self, plan: SegmentPlan) -> SegmentReport:
        if self._publishing is None or self._publishing.state.is_final():
            self._publishing = publish_run.submit(self._spec)  # In parallel: the attempt must not wait for a plot.
        return _report_of(run_segment(self._spec, plan, return_state=True))

    def judge(self, report: SegmentReport) -> Verdict | None:
        return judge_resume(self._spec, report)

    def finish_publishing(self) -> None:
        """Wait for the artifact that is being published, so that it does not replace the last one."""
        if self._publishing is not None:
            self._publishing.wait(timeout=_PUBLISH_SECONDS)


def _with_cost(reason: str, state: State[CostReport]) -> str:
    cost = state.result(raise_on_failure=False)
    return f"{reason}; {cost.sentence}" if isinstance(cost, CostReport) and cost.sentence else reason


def _report_of(state: State[SegmentReport]) -> SegmentReport:
    # The state of a preempted attempt is Crashed and holds its report; an exception is a real error and is raised.
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result
