"""Flow `retrain`: a new run for each scheduled time, with a deadline a fixed time after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from segue.flows.train import train
from segue.tasks.curve import check_curve

from segue.spec import RunSpec


@flow(name="retrain", retries=0, persist_result=False)
def retrain(template: dict[str, Any], *, name: str, ready_within_hours: float | None = None) -> Any:
    """Train `template` (a run spec without `run_id` and `deadline`) as the run `name-<scheduled time>`.

    The run id contains the scheduled time, so a retry of this flow run resumes the same run.
    """
    due: datetime = flow_run.scheduled_start_time or datetime.now(UTC)
    spec = spec_for(template, name=name, due=due, ready_within_hours=ready_within_hours)
    state: Any = train(spec, return_state=True)
    if state.is_completed():
        # The findings are in the check's artifact and log, for runs that no person watches. They do not fail the run.
        check_curve(spec, return_state=True)
    return state


def spec_for(template: dict[str, Any], *, name: str, due: datetime, ready_within_hours: float | None) -> RunSpec:
    """The run spec of one scheduled time.

    Raises:
        SpecError: the template has wrong fields.
    """
    deadline = due + timedelta(hours=ready_within_hours) if ready_within_hours is not None else None
    stamp = due.astimezone(UTC).strftime("%Y%m%dt%H%M")
    return RunSpec.parse(template | {"run_id": f"{name}-{stamp}", "deadline": deadline}, source="the retrain template")
