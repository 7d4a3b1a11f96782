"""Arrival of data: whether the files of a window are new and complete, so that a slot is to begin. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field

from segue.data.files import Listed
from segue.records import Record
from segue.retraining.history import Models
from segue.retraining.model_record import Trigger
from segue.retraining.spec import Window
from segue.retraining.triggers.spec import ArrivalSpec
from segue.retraining.window import Chosen

_MOST_NAMED = 3


class Seen(Record):
    """What the last look saw, for the next one."""

    files: str = Field("", description="Hash of the window's files as they were listed.")
    since: AwareDatetime | None = Field(None, description="Since when these files have not changed.")
    known: str = Field("", description="Reason that is none: the newest slot has begun with the same content.")
    compared: str = Field("", description="Hash of listed data in service that was compared, and with which version.")


class Arrival(NamedTuple):
    """What a look says of the files of a window."""

    action: Literal["none", "wait", "compare", "train"]
    """`compare`: a slot has begun with files of these names and sizes, and only their content tells the rest."""
    why: str


def key_of(chosen: Chosen, listed: Sequence[Listed]) -> str:
    """What the files of a window are, by a listing of them: it changes when one of them does."""
    known = {each.path: each for each in listed}
    lines = [f"{place.path}\n{place.is_held_back}\n{known[place.path][1:]}" for place in chosen.files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def reason_of(files: str, models: Models, *, before: datetime | None = None) -> str:
    """What the files of a window are to the newest slot, or to the newest one `before` another.

    Those of an earlier slot that are put back are a reason once more.
    """
    begun = [slot for slot, state in models.slots.items() if state.start is not None]
    slots = [slot.isoformat() for slot in begun if before is None or slot < before]
    return hashlib.sha256("\n".join([files, *slots[-1:]]).encode()).hexdigest()


def noted(seen: Seen, key: str, *, now: datetime) -> Seen:
    """What was seen, with the files of now."""
    return seen if seen.files == key else seen.model_copy(update={"files": key, "since": now})


def arrival_of(
    spec: ArrivalSpec,
    chosen: Chosen,
    listed: Sequence[Listed],
    models: Models,
    seen: Seen,
    *,
    now: datetime,
    is_there: Callable[[str], bool],
) -> Arrival:
    """What is to be done about the files of a window. `seen` knows them, and `is_there` finds a marker.

    A slot that failed on these files is not begun again until one of them changes.
    """
    reason = reason_of(seen.files, models)
    begun = next((each for each in models.triggers.values() if each.key == reason), None) or _newest(models, seen.files)
    if begun is not None:
        return Arrival("none", f"nothing new: these files began the slot of {begun.slot:%Y-%m-%d %H:%M:%S %Z}")
    if seen.known == reason:
        return Arrival("none", "nothing new: a slot has begun with these files")
    waits = _incomplete(spec, chosen, seen, now=now, is_there=is_there)
    if waits is not None:
        return Arrival("wait", waits)
    why = _difference(newest_window(models), chosen, listed)
    return Arrival("train", why) if why else Arrival("compare", "names and sizes of the files are known")


def _newest(models: Models, files: str) -> Trigger | None:
    """What began the newest slot, if it was these files: then their content need not be read."""
    begun = [slot for slot, state in models.slots.items() if state.start is not None]
    trigger = models.triggers.get(begun[-1]) if begun else None
    is_same = trigger is not None and trigger.key == reason_of(files, models, before=trigger.slot)
    return trigger if is_same else None


def newest_window(models: Models) -> Window | None:
    """The data of the newest slot that has begun, whether it was accepted or not; None without one."""
    starts = [state.start for state in models.slots.values() if state.start is not None]
    return starts[-1].window if starts else None


def _incomplete(
    spec: ArrivalSpec, chosen: Chosen, seen: Seen, *, now: datetime, is_there: Callable[[str], bool]
) -> str | None:
    if spec.marker is not None:
        folders = dict.fromkeys(place.path.rpartition("/")[0] for place in chosen.files)
        missing = next((folder for folder in folders if not is_there(f"{folder}/{spec.marker}")), None)
        return None if missing is None else f"files are not complete: there is no {spec.marker} in {missing}"
    assert seen.since is not None
    left = timedelta(minutes=spec.settle_minutes) - (now - seen.since)
    if left <= timedelta():
        return None
    return f"files have changed; they count as complete in {left.total_seconds():.0f} s if none changes until then"


def _difference(before: Window | None, chosen: Chosen, listed: Sequence[Listed]) -> str:
    """What is new since the window before, by names and sizes; empty where nothing is, also where files are gone."""
    sizes = {each.path: each.size_bytes for each in listed}
    if before is None:
        return f"the first data has arrived: {names([place.path for place in chosen.files])}"
    known = {file.path: file for file in before.files}
    new = [place.path for place in chosen.files if place.path not in known]
    changed = [
        place.path
        for place in chosen.files
        if place.path in known and known[place.path].size_bytes != sizes[place.path]
    ]
    parts = [("new data", new), ("changed data", changed)]
    return "; ".join(f"{what}: {names(paths)}" for what, paths in parts if paths)


def names(paths: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(paths[:_MOST_NAMED])}{more}"
