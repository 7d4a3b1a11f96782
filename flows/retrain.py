"""Flow `retrain`, run by a schedule: check a slot's data, train, evaluate, and promote what is better."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from segue.flows.slot import SKIPPED, SlotRunner
from segue.tasks.parent_clock import parent_clock
from segue.tasks.prefect_api import DUPLICATE
from segue.tasks.quiet_logs import quieten
from segue.tasks.retraining.schedule import ticks

from segue.errors import ParentAliveError, SegueError, StoreError
from segue.launch.output import survive_broken_output
from segue.retraining.model_record import SlotEnd
from segue.retraining.slots import missed_slots, run_id_of, slot_at
from segue.retraining.spec import RetrainSpec

_MISSED = "no worker started it while it was the newest slot"


def _name() -> str:
    """Name of a flow run: that of its slot, if its parameters give one."""
    file = Path(str(flow_run.parameters.get("file", "retrain.toml")))
    try:
        return run_id_of(RetrainSpec.from_toml(file), _slot(flow_run.parameters.get("slot")))
    except SegueError:
        return file.stem  # The flow itself says what is wrong with the file.


@flow(name="retrain", flow_run_name=_name, retries=0, validate_parameters=True, persist_result=False)
def retrain(file: str = "retrain.toml", *, slot: datetime | None = None) -> Any:
    """Train, evaluate and publish one slot of the schedule in `file`, once, however often it is started.

    `slot` is the time to train for; by default the time that this flow run was scheduled for. Started again, it goes on
    where it was: with the same window of data, the same run, the same candidate.
    """
    survive_broken_output()
    quieten()
    try:
        spec = RetrainSpec.from_toml(Path(file))
        runner = SlotRunner(spec, folder=Path(file).absolute().parent, logger=get_run_logger())
        runner.require_store()
        mine = _slot(slot)
        if slot is None and (skipped := _skip_missed(spec, runner, mine)) is not None:
            return skipped
        return runner.run(mine)
    except ParentAliveError as error:
        return Cancelled(name=DUPLICATE, message=str(error))
    except StoreError:
        raise  # The slot stays open: recovery starts it again when the store is back.
    except SegueError as error:
        return Failed(message=str(error))


def _slot(given: datetime | str | None) -> datetime:
    if isinstance(given, str):
        given = datetime.fromisoformat(given)
    return slot_at(given or flow_run.scheduled_start_time or parent_clock().now())


def _skip_missed(spec: RetrainSpec, runner: SlotRunner, slot: datetime) -> State[Any] | None:
    """Leave missed slots out, or run them first. The state of this slot if it is one of them and is left out."""
    log, now = runner.log, parent_clock().now()
    is_of_schedule = slot in ticks(spec, since=slot - timedelta(seconds=1), until=slot)
    is_missed = is_of_schedule and bool(ticks(spec, since=slot, until=now))
    known = log.read().slots
    missed = missed_slots(known, ticks(spec, since=max(known, default=slot), until=slot), until=slot)
    if spec.missed == "run":
        for earlier in missed:
            try:
                runner.run(earlier)
            except ParentAliveError:
                continue  # Another flow run has it.
        return None
    for earlier in (*missed, *([slot] if is_missed else [])):
        log.end_slot(SlotEnd(slot=earlier, outcome="skipped", why=_MISSED))
        get_run_logger().warning("slot left out slot=%s reason=%s", earlier.isoformat(), _MISSED)
    return Completed(name=SKIPPED, message=f"{run_id_of(spec, slot)}: {_MISSED}") if is_missed else None
