"""Defines the flow `watch`, which runs on a schedule and after events. The flow begins a slot if new data has arrived
or if the data of the model in service has drifted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from segue.errors import SegueError, SpecError
from segue.prefect.parent_clock import parent_clock, run_time
from segue.prefect.ui.quiet_logs import quieten
from segue.retraining.slots import store_of
from segue.retraining.spec import RetrainSpec
from segue.tasks.retraining import look_for_triggers, start_triggered


@flow(name="watch", retries=0, validate_parameters=True, persist_result=False)
def watch(file: str = "retrain.toml") -> State[Any]:
    """Check the retraining in `file` once for new or drifted data, and start the flow runs of new slots.

    Several runs of this flow may run in parallel, because the log accepts only one slot for the same data. If the check
    fails, the flow still starts the slots that earlier checks recorded.
    """
    quieten()
    said: list[str] = []
    problems: list[str] = []
    try:
        spec = RetrainSpec.from_toml(Path(file))
        if spec.trigger is None:
            raise SpecError(source=file, problems=("trigger: required, with [trigger.arrival] or [trigger.drift]",))
        with run_time(store_of(spec)):
            for step in (look_for_triggers, start_triggered):
                try:
                    said += step(spec, now=parent_clock().now())
                except SegueError as error:
                    problems.append(str(error))
    except SegueError as error:
        return Failed(message=str(error))
    for line in said:
        get_run_logger().info("%s", line)
    return Failed(message=" ".join(problems)) if problems else Completed(message="; ".join(said))
