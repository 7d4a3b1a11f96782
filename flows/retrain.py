"""Defines the flow `retrain`, which a schedule runs. The flow checks a slot's data, and trains and evaluates a
candidate. If the candidate is better, the flow promotes the candidate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from segue.errors import ParentAliveError, SegueError
from segue.flows.slot import SlotRunner
from segue.launch.output import survive_broken_output
from segue.prefect.api import tagged
from segue.prefect.parent_clock import parent_clock, run_time
from segue.prefect.slots.slot_ticks import ticks
from segue.prefect.state_words import Word, state_with
from segue.prefect.ui.quiet_logs import quieten
from segue.retraining.slots import missed_slots, newest_begun, run_id_of, slot_at, store_of
from segue.retraining.spec import RetrainSpec
from segue.stores.base import StoreReadError, StoreWriteError

_MISSED = "no worker started it while it was the newest slot"


def _name() -> str:
    """Return the name of a flow run: the name of the slot. If the file cannot be read, return the file's name."""
    file = Path(str(flow_run.parameters.get("file", "retrain.toml")))
    try:
        spec = RetrainSpec.from_toml(file)
        return run_id_of(spec, _slot(spec, flow_run.parameters.get("slot")))
    except SegueError:
        return file.stem  # The flow itself says what is wrong with the file.


@flow(name="retrain", flow_run_name=_name, retries=0, validate_parameters=True, persist_result=False)
def retrain(file: str = "retrain.toml", *, slot: datetime | None = None) -> Any:
    """Train, evaluate and publish one slot of the schedule in `file`, exactly once even if the flow starts repeatedly.

    `slot` is the time of the slot to train. A time without a zone is in the schedule's zone. By default, `slot` is the
    scheduled time of this flow run. If the flow starts again, it continues the slot with the same window, run and
    candidate.
    """
    survive_broken_output()
    quieten()
    return tagged(flow_run.id, _ended(file, slot))


def _ended(file: str, slot: datetime | None) -> State[Any]:
    try:
        spec = RetrainSpec.from_toml(Path(file))
        with run_time(store_of(spec)):
            return _retrain(spec, Path(file).absolute().parent, slot)
    except ParentAliveError as error:
        return state_with(Word.DUPLICATE, str(error))
    except (StoreReadError, StoreWriteError):
        raise  # The slot stays open for recovery.
    except SegueError as error:
        return Failed(message=str(error))


def _retrain(spec: RetrainSpec, folder: Path, slot: datetime | None) -> State[Any]:
    runner = SlotRunner(spec, folder=folder, logger=get_run_logger())
    runner.require_store()
    mine = _slot(spec, slot)
    missed: Sequence[datetime] = ()
    if slot is None:
        missed, is_missed = _missed(spec, runner, mine)
        if spec.missed == "skip":
            for earlier in missed:
                runner.leave_out(earlier, why=_MISSED)
            missed = ()
            if is_missed:
                return runner.leave_out(mine, why=_MISSED)
    return runner.run(mine, after=missed)


def _slot(spec: RetrainSpec, given: datetime | str | None) -> datetime:
    if isinstance(given, str):
        given = datetime.fromisoformat(given)
    return slot_at(given or flow_run.scheduled_start_time or parent_clock().now(), spec.zone)


def _missed(spec: RetrainSpec, runner: SlotRunner, slot: datetime) -> tuple[Sequence[datetime], bool]:
    """Return the earlier slots of the schedule that no flow run has begun, and whether this slot itself was missed."""
    now, known = parent_clock().now(), runner.log.read().slots
    taken = {*known, *runner.turns.living()}
    is_of_schedule = slot in ticks(spec, since=slot - timedelta(seconds=1), until=slot)
    is_missed = is_of_schedule and slot not in taken and bool(ticks(spec, since=slot, until=now))
    all_ticks = ticks(spec, since=newest_begun(known, until=slot) or slot, until=slot)
    return [tick for tick in missed_slots(known, all_ticks, until=slot) if tick not in taken], is_missed
