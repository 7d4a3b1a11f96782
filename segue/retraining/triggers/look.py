"""One look for what begins a slot: the files of its window and those of data in service, as they are now."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from segue.data.files import Listed, fetch, is_there, listed
from segue.errors import MissingObjectError, NoDataError
from segue.retraining.history import Models
from segue.retraining.model_record import Trigger
from segue.retraining.models import ModelsLog
from segue.retraining.spec import RetrainSpec, Window
from segue.retraining.triggers import arrival, drift
from segue.retraining.triggers.arrival import Arrival, Seen
from segue.retraining.triggers.spec import DriftSpec, TriggerSpec
from segue.retraining.window import Chosen, choose
from segue.runlog import keys

_STARTED_WITHIN = timedelta(days=1)


class Look(NamedTuple):
    """What a look has found."""

    lines: tuple[str, ...]
    """What is said of each cause."""
    trigger: Trigger | None
    """The slot that was asked for."""


class _Now(NamedTuple):
    """The window of a slot that would begin now."""

    chosen: Chosen
    files: Sequence[Listed]
    key: str


def look(spec: RetrainSpec, log: ModelsLog, *, now: datetime) -> Look:
    """Look once, and ask for a slot where there is a reason. Safe beside itself: the same reason begins one slot.

    A crash loses nothing: what was asked for is in the model's log, and is in `unstarted` until its slot begins.

    Raises:
        DataUnreadableError: files could not be listed or read; the next look tries again.
        MissingExtraError: the package that reaches such files is not installed.
        SpecError: [data] or [trigger.drift] does not fit the data.
        StoreReadError, StoreWriteError: a retry is safe.
    """
    assert spec.trigger is not None
    models, before = log.read(), _seen(log)
    try:
        window = _window(spec, now)
    except NoDataError as error:
        return Look((str(error),), None)
    seen = arrival.noted(before, window.key, now=now)
    lines: list[str] = []
    trigger, waits = None, False
    if spec.trigger.arrival is not None:
        found, seen = _arrival(spec, spec.trigger, models, window, seen, now=now)
        lines.append(found.why)
        waits = found.action == "wait"
        if found.action == "train":
            trigger = log.trigger("arrival", arrival.reason_of(window.key, models), why=found.why, now=now)
    if spec.trigger.drift is not None and trigger is None and not waits:
        why, trigger, seen = _drift(spec, spec.trigger.drift, log, models, window=window, seen=seen, now=now)
        lines.append(why)
    if seen != before:
        log.store.put(keys.seen_key(spec.name), seen.model_dump_json().encode())
    return Look(tuple(lines), trigger)


def unstarted(models: Models, *, now: datetime) -> list[Trigger]:
    """The slots that were asked for lately and have not begun."""
    return [each for slot, each in models.triggers.items() if slot not in models.slots and now - slot < _STARTED_WITHIN]


def _window(spec: RetrainSpec, now: datetime) -> _Now:
    files: list[Listed] = []

    def find(pattern: str) -> list[str]:
        found = listed(pattern, spec.data)
        files.extend(found)
        return [each.path for each in found]

    chosen = choose(spec, now, find=find)
    return _Now(chosen, files, arrival.key_of(chosen, files))


def _arrival(
    spec: RetrainSpec, triggers: TriggerSpec, models: Models, window: _Now, seen: Seen, *, now: datetime
) -> tuple[Arrival, Seen]:
    assert triggers.arrival is not None
    found = arrival.arrival_of(
        triggers.arrival,
        window.chosen,
        window.files,
        models,
        seen,
        now=now,
        is_there=lambda path: is_there(path, spec.data),
    )
    if found.action != "compare":
        return found, seen
    newest = arrival.newest_window(models)
    changed = _changed(window.chosen, newest, spec) if newest is not None else []
    if changed:
        return Arrival("train", f"changed data: {arrival.names(changed)}"), seen
    why = "nothing new: a slot has begun with these files"
    return Arrival("none", why), seen.model_copy(update={"known": arrival.reason_of(window.key, models)})


def _changed(chosen: Chosen, before: Window, spec: RetrainSpec) -> list[str]:
    """The files with other content than in a window."""
    hashes = {file.path: file.sha256 for file in before.files}
    return [place.path for place in chosen.files if fetch(place.path, spec.data)[0].sha256 != hashes.get(place.path)]


def _drift(
    spec: RetrainSpec, wanted: DriftSpec, log: ModelsLog, models: Models, *, window: _Now, seen: Seen, now: datetime
) -> tuple[str, Trigger | None, Seen]:
    version = models.in_service
    start = models.slot_of(version).start if version is not None else None
    files = drift.newest_of(wanted, listed(wanted.data, spec.data))
    if version is None or start is None:
        return "drift is not computed: no version is in service", None, seen
    if not files:
        return f"drift is not computed: there are no files at {wanted.data}", None, seen
    key = drift.key_of(files, version)
    if seen.compared == key:
        return "drift: the data in service was compared before", None, seen
    if unstarted(models, now=now) or any(state.is_open and not state.is_waiting for state in models.slots.values()):
        return "drift is computed when the slot that runs has ended: it may bring another version", None, seen
    drifts = drift.drift_in(wanted, files, start.gate.profiles, spec.data)
    compared = seen.model_copy(update={"compared": key})
    exceeded = drift.exceeded(wanted, drifts)
    if not exceeded:
        return f"no drift of the data in service: {drift.largest(drifts)}", None, compared
    count = f"{len(files)} {'file' if len(files) == 1 else 'files'} at {wanted.data}"
    why = f"drift of the data in service from that of version {version}: {exceeded} ({count})"
    # Another slot on the same data would train the same model: once for each version and window.
    once = hashlib.sha256(f"drift {version} {window.key}".encode()).hexdigest()
    trigger = log.trigger("drift", once, why=why, now=now)
    if trigger.slot in models.slots or trigger.slot in models.triggers:
        begun = f"{trigger.slot:%Y-%m-%d %H:%M:%S %Z}"
        return f"{why}; the slot of {begun} began for it, and there is no newer data to train on", None, compared
    return why, trigger, compared


def _seen(log: ModelsLog) -> Seen:
    try:
        return Seen.model_validate_json(log.store.get(keys.seen_key(log.name)))
    except (MissingObjectError, ValidationError):  # Of a newer version: files settle once more.
        return Seen()
