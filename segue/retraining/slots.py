"""Defines the slots of a schedule: their names, their runs, and the reaction to overlapping slots.

The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Literal, NamedTuple

from segue.retraining.history import SlotState
from segue.retraining.periods import in_utc
from segue.retraining.spec import RetrainSpec, Window
from segue.spec import RunSpec, StoreSpec

_MOST_MISSED = 100
_STAMP = "%Y%m%dt%H%M"
_HEARTBEAT = "_slot-"


def slot_at(moment: datetime, zone: tzinfo = UTC) -> datetime:
    """Return the slot at a moment. A slot is identified by its moment in UTC, without fractions of a second.

    A moment without a time zone is a time in `zone`.
    """
    known = moment if moment.tzinfo is not None else datetime.combine(moment.date(), moment.time(), zone)
    return in_utc(known).replace(microsecond=0)


def stamp_of(slot: datetime) -> str:
    """Return the text of a slot in names, e.g. 20130701t0600, with the seconds if they are not 0.

    The text is in UTC, because no hour comes twice in UTC.
    """
    utc = slot.astimezone(UTC)
    return utc.strftime(_STAMP + "%S" if utc.second else _STAMP)


def slot_of(stamp: str) -> datetime:
    """Return the slot of a text from `stamp_of`."""
    is_short = len(stamp) == len("20130701t0600")
    return datetime.strptime(stamp, _STAMP if is_short else _STAMP + "%S").replace(tzinfo=UTC)


def run_id_of(spec: RetrainSpec, slot: datetime) -> str:
    """Return the run id of a slot, which stays the same if the slot is started again."""
    return f"{spec.name}-{stamp_of(slot)}"


def run_of(spec: RetrainSpec, slot: datetime, window: Window | None, *, now: datetime) -> RunSpec:
    """Return the run of a slot on the files of the slot's window.

    If the deadline has passed, segue drops it, so that the run has the lowest cost. A relative path of the store's
    folder begins at the current folder.
    """
    deadline = slot + timedelta(hours=spec.ready_within_hours) if spec.ready_within_hours is not None else None
    fields = spec.run | {"run_id": run_id_of(spec, slot)}
    if deadline is not None and deadline > now:
        fields["deadline"] = deadline.isoformat()
    run = RunSpec.parse(fields, source="retrain.toml")
    updates: dict[str, object] = {"store": _absolute(run.store)}
    if window is not None:
        updates["data"] = window.data_of(window.training, spec.data)
    return run.model_copy(update=updates)


def store_of(spec: RetrainSpec) -> StoreSpec:
    """Return the store of the model, which is also the store of the model's runs."""
    return run_of(spec, datetime(2000, 1, 1, tzinfo=UTC), None, now=datetime(2001, 1, 1, tzinfo=UTC)).store


def missed_slots(
    slots: Mapping[datetime, SlotState], ticks: Iterable[datetime], *, until: datetime
) -> tuple[datetime, ...]:
    """Return the scheduled times between the newest slot that began and `until`: at most 100, in order of time.

    The result has no times of recorded slots.
    """
    since = newest_begun(slots, until=until)
    if since is None:
        return ()
    return tuple(tick for tick in ticks if since < tick < until and tick not in slots)[-_MOST_MISSED:]


def newest_begun(slots: Mapping[datetime, SlotState], *, until: datetime) -> datetime | None:
    """Return the newest of the slots that are recorded, earlier than `until`, and begun.

    If no slot has begun, return the newest recorded slot, or None. A slot may have ended before it began: its flow run
    first ran an earlier missed slot, and then died. The missed slots between the two slots are then not recorded.
    Therefore a slot that has begun is preferred.
    """
    earlier = [slot for slot in slots if slot < until]
    begun = [slot for slot in earlier if slots[slot].start is not None]
    return max(begun or earlier, default=None)


def heartbeat_of(model: str, slot: datetime) -> str:
    """Return the name of a slot's heartbeat among the heartbeats of parents. No run can have this name."""
    return f"{_HEARTBEAT}{model}-{stamp_of(slot)}"


def model_and_slot_of(heartbeat: str) -> tuple[str, datetime] | None:
    """Return the model and the slot in the name of a heartbeat. Return None for the heartbeat of a run's parent."""
    model, _, stamp = heartbeat.removeprefix(_HEARTBEAT).rpartition("-")
    return (model, slot_of(stamp)) if heartbeat.startswith(_HEARTBEAT) else None


class Overlap(NamedTuple):
    """The reaction of a slot to earlier slots that are not done."""

    action: Literal["go", "wait", "skip", "supersede"]
    why: str = ""


def overlap_of(spec: RetrainSpec, slot: datetime, others: Iterable[datetime]) -> Overlap:
    """Return whether a slot starts, waits, is skipped or replaces other slots, if `others` run
    now. A slot never waits for later slots."""
    earlier = sorted(other for other in others if other < slot)
    if not earlier:
        return Overlap("go")
    names = ", ".join(run_id_of(spec, each) for each in earlier)
    match spec.overlap:
        case "skip":
            return Overlap("skip", f"{names} is not done, and overlap is skip")
        case "supersede":
            return Overlap("supersede", f"superseded by {run_id_of(spec, slot)}")
        case "queue":
            return Overlap("wait", f"waiting for {names}")


def _absolute(store: StoreSpec) -> StoreSpec:
    if "://" in store.url:
        return store
    return store.model_copy(update={"url": str(Path(store.url).expanduser().absolute())})
