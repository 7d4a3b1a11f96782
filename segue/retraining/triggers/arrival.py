"""Decides whether the files of a window are new and complete, so that a slot begins. The module is pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field

from segue.data.files import Listed
from segue.records import Record
from segue.retraining.history import Models
from segue.retraining.model_record import Trigger
from segue.retraining.spec import Window
from segue.retraining.trigger_spec import ArrivalSpec
from segue.retraining.window import Chosen

_MOST_NAMED = 3

WrittenAt = Callable[[str], Mapping[str, datetime | None]]
"""A function that returns the time of the last write of each file of a folder, including markers.

An unknown time is None.
"""


class Seen(Record):
    """The observations of one check, which the next check reads."""

    files: str = Field("", description="Hash of the listing of the window's files.")
    since: AwareDatetime | None = Field(None, description="Time since which these files have not changed.")
    hashes: dict[str, str] = Field(default_factory=dict, description="SHA-256 of each file; empty before a read.")
    compared: str = Field(
        "", description="Hash of the last drift comparison: data in service, version, and files of the window."
    )


class Arrival(NamedTuple):
    """The result of a check of the files of a window."""

    action: Literal["none", "wait", "compare", "train"]
    """The action `compare` means that another slot has files of the same names and sizes, but perhaps other content."""
    why: str


def key_of(chosen: Chosen, listed: Sequence[Listed]) -> str:
    """Return a key of the files of a window, from their listing. If a file changes, the key changes."""
    known = {each.path: each for each in listed}
    lines = [f"{place.path}\n{place.is_held_back}\n{known[place.path][1:]}" for place in chosen.files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def reason_of(files: str, models: Models, *, before: datetime | None = None) -> str:
    """Return a key that identifies the files of a window and the newest slot (before `before`, if given).

    If files of an earlier slot are restored, or if a slot was skipped, the same files can start a slot under a new key.
    """
    passed = [slot for slot, state in models.slots.items() if state.start is not None or _is_left_out(models, slot)]
    slots = [slot.isoformat() for slot in passed if before is None or slot < before]
    return hashlib.sha256("\n".join([files, *slots[-1:]]).encode()).hexdigest()


def begun_for(files: str, models: Models) -> Trigger | None:
    """Return the trigger that requested a slot for the present files.

    If the newest slot began for these files and failed, return the trigger of this slot.
    """
    reason = reason_of(files, models)
    asked = next((each for each in models.triggers.values() if each.key == reason), None)
    begun = [slot for slot, state in models.slots.items() if state.start is not None]
    newest = models.triggers.get(begun[-1]) if begun else None
    is_same = newest is not None and newest.key == reason_of(files, models, before=newest.slot)
    return asked or (newest if is_same else None)


def _is_left_out(models: Models, slot: datetime) -> bool:
    """Whether a requested slot ended as skipped before it began, so that its files may not have been used."""
    state = models.slots[slot]
    is_skipped = state.end is not None and state.end.outcome == "skipped"
    return slot in models.triggers and state.start is None and is_skipped


def noted(seen: Seen, key: str, *, now: datetime) -> Seen:
    """Return the observations of the previous check, updated with the present files."""
    return seen if seen.files == key else seen.model_copy(update={"files": key, "since": now, "hashes": {}})


def arrival_of(
    spec: ArrivalSpec,
    chosen: Chosen,
    listed: Sequence[Listed],
    models: Models,
    seen: Seen,
    *,
    now: datetime,
    written_at: WrittenAt,
) -> Arrival:
    """Return the action for the files of a window. `seen` contains the observations of earlier checks.

    If a slot failed on these files, no new slot begins until a file changes.
    """
    begun = begun_for(seen.files, models)
    if begun is not None:
        return Arrival("none", f"nothing new: these files began the slot of {begun.slot:%Y-%m-%d %H:%M:%S %Z}")
    newest = _newest_window(models)
    why = _difference(newest, chosen, listed)
    same = same_window(models.last_windows(), chosen, listed, seen.hashes)
    if seen.hashes:
        why = "" if same is not None else why or _changed(newest, chosen, seen.hashes)
        if not why:
            return Arrival("none", "nothing new: a slot has begun with these files")
    waits = _incomplete(spec, chosen, seen, now=now, written_at=written_at)
    if waits is not None:
        return Arrival("wait", waits)
    if not seen.hashes and (not why or same is not None):
        return Arrival("compare", "names and sizes of the files are known")
    return Arrival("train", why)


def same_window(
    windows: Mapping[datetime, Window], chosen: Chosen, listed: Sequence[Listed], hashes: Mapping[str, str]
) -> datetime | None:
    """Return the newest slot with the same data. If `hashes` is empty, compare only names and sizes of the files."""
    sizes = {each.path: each.size_bytes for each in listed}
    content = {(place.path, hashes.get(place.path) or sizes[place.path], place.is_held_back) for place in chosen.files}
    same = [
        slot
        for slot, window in windows.items()
        if content
        == {(file.path, file.sha256 if hashes else file.size_bytes, file.is_held_back) for file in window.files}
    ]
    return same[-1] if same else None


def _newest_window(models: Models) -> Window | None:
    """Return the data of the newest slot that has begun, even if the data was not accepted, or None."""
    starts = [state.start for state in models.slots.values() if state.start is not None]
    return starts[-1].window if starts else None


def _changed(before: Window | None, chosen: Chosen, hashes: Mapping[str, str]) -> str:
    """Return a text about the files whose content differs from the previous window. Without such files, it is empty."""
    known = {file.path: file.sha256 for file in before.files} if before is not None else {}
    changed = [place.path for place in chosen.files if hashes[place.path] != known.get(place.path)]
    return f"changed data: {names(changed)}" if changed else ""


def _incomplete(spec: ArrivalSpec, chosen: Chosen, seen: Seen, *, now: datetime, written_at: WrittenAt) -> str | None:
    what = "files have changed"
    if spec.marker is not None:
        folders: dict[str, list[str]] = {}
        for folder, _, name in (place.path.rpartition("/") for place in chosen.files):
            folders.setdefault(folder, []).append(name)
        times = {folder: written_at(folder) for folder in folders}
        missing = next((folder for folder in folders if spec.marker not in times[folder]), None)
        if missing is not None:
            return f"files are not complete: there is no {spec.marker} in {missing}"
        older = next((each for each in folders if not _is_after(times[each], spec.marker, folders[each])), None)
        if older is None:
            return None
        what = f"{spec.marker} in {older} is older than its files: it belongs to an earlier delivery"
    assert seen.since is not None
    left = timedelta(minutes=spec.settle_minutes) - (now - seen.since)
    if left <= timedelta():
        return None
    return f"{what}; files count as complete in {left.total_seconds():.0f} s if no file changes until then"


def _is_after(times: Mapping[str, datetime | None], marker: str, files: Sequence[str]) -> bool:
    """Whether a marker is at least as new as all of these files, and therefore belongs to their delivery."""
    written, others = times[marker], [times.get(name) for name in files]
    return written is not None and all(time is not None and time <= written for time in others)


def _difference(before: Window | None, chosen: Chosen, listed: Sequence[Listed]) -> str:
    """Return a text about new or changed files since the previous window, by names and sizes. The text may be empty."""
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
    """Return a text with the first paths and the number of the other paths."""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(paths[:_MOST_NAMED])}{more}"
