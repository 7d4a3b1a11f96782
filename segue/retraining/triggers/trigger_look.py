"""Checks once for a cause of a slot, in the files of the window and in the files of the data in service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from segue.data.files import Listed, hash_of, listed, written_at
from segue.errors import DataUnreadableError, MissingObjectError, NoDataError
from segue.retraining.history import Models
from segue.retraining.model_record import Trigger
from segue.retraining.models import ModelsLog
from segue.retraining.spec import RetrainSpec
from segue.retraining.trigger_spec import ArrivalSpec, DriftSpec
from segue.retraining.triggers import arrival, drift
from segue.retraining.triggers.arrival import Arrival, Seen
from segue.retraining.window import Chosen, choose
from segue.runlog import keys

_STARTED_WITHIN = timedelta(days=1)


class Look(NamedTuple):
    """The result of a check of the triggers."""

    lines: tuple[str, ...]
    """One sentence for each cause."""
    trigger: Trigger | None
    """The request for a slot. The value is None if no slot was requested."""


class _Now(NamedTuple):
    """The window of a slot that would begin now."""

    chosen: Chosen
    files: Sequence[Listed]
    key: str


def look(spec: RetrainSpec, log: ModelsLog, *, now: datetime) -> Look:
    """Check the triggers once, and request a slot if there is a cause.

    If two checks run at the same time, they request only one slot. A crash loses nothing, because the request is in the
    model's log. `unstarted` returns the request until its slot begins.

    Raises:
        DataUnreadableError: files could not be listed or read. The next check tries again.
        MissingExtraError: the extra package for files at such an address is not installed.
        SpecError: [data] or [trigger.drift] does not fit the data.
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again.
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
        found, seen = _arrival(spec, spec.trigger.arrival, models, window, seen, now=now)
        lines.append(found.why)
        waits = found.action == "wait"
        if found.action == "train":
            trigger = log.trigger("arrival", arrival.reason_of(window.key, models), why=found.why, now=now)
    # Observations are kept before the data in service is read, because that data may be damaged.
    _keep(log, seen, before)
    if spec.trigger.drift is not None and trigger is None and not waits:
        watch = _Drift(spec, spec.trigger.drift, log, window, now)
        why, trigger, compared = watch.look(models, seen)
        _keep(log, compared, seen)
        lines.append(why)
    return Look(tuple(lines), trigger)


def unstarted(models: Models, *, now: datetime) -> list[Trigger]:
    """Return the requests of the last day whose slots have not begun."""
    return [each for slot, each in models.triggers.items() if slot not in models.slots and now - slot < _STARTED_WITHIN]


def _is_busy(models: Models, *, now: datetime) -> bool:
    """Whether a slot trains or was requested. A slot that waits for a person's decision does not train."""
    is_open = any(state.is_open and not state.is_waiting for state in models.slots.values())
    return is_open or bool(unstarted(models, now=now))


def _window(spec: RetrainSpec, now: datetime) -> _Now:
    files: list[Listed] = []

    def find(pattern: str) -> list[str]:
        found = listed(pattern, spec.data)
        files.extend(found)
        return [each.path for each in found]

    chosen = choose(spec, now, find=find)
    return _Now(chosen, files, arrival.key_of(chosen, files))


def _arrival(
    spec: RetrainSpec, wanted: ArrivalSpec, models: Models, window: _Now, seen: Seen, *, now: datetime
) -> tuple[Arrival, Seen]:
    def judged(seen: Seen) -> Arrival:
        found = arrival.arrival_of(
            wanted,
            window.chosen,
            window.files,
            models,
            seen,
            now=now,
            written_at=lambda folder: written_at(folder, spec.data),
        )
        if found.action == "train" and spec.overlap == "skip" and _is_busy(models, now=now):
            # A slot that is requested now would be left out, and its files would not be used.
            return Arrival("wait", f"{found.why}; a slot begins after the end of the running slot: overlap is skip")
        return found

    found = judged(seen)
    if found.action == "compare":
        seen = _read(window, seen, spec, now=now)
        found = judged(seen)
    return found, seen


def _read(window: _Now, seen: Seen, spec: RetrainSpec, *, now: datetime) -> Seen:
    """Return the observations of this check, with the hashes of the window's files. Each file is read once.

    Raises:
        DataUnreadableError: a file could not be read, or has changed during the check.
    """
    hashes = {each.path: hash_of(each.path, spec.data) for each in window.chosen.files}
    if _window(spec, now).key != window.key:
        raise DataUnreadableError(path=spec.data.files, why="a file was written to while it was read")
    return seen.model_copy(update={"hashes": hashes})


@dataclass(frozen=True)
class _Drift:
    """A check of the drift of data in service."""

    spec: RetrainSpec
    wanted: DriftSpec
    log: ModelsLog
    window: _Now
    now: datetime

    def look(self, models: Models, seen: Seen) -> tuple[str, Trigger | None, Seen]:
        """Return the sentence about the drift, the request for a slot, and the new observations."""
        version = models.in_service
        start = models.slot_of(version).start if version is not None else None
        files = drift.newest_of(self.wanted, listed(self.wanted.data, self.spec.data))
        if version is None or start is None:
            return "drift is not computed: no version is in service", None, seen
        if not files:
            return f"drift is not computed: there are no files at {self.wanted.data}", None, seen
        key = drift.key_of(files, version, self.window.key)
        if seen.compared == key:
            return "drift: the data in service was compared before", None, seen
        if _is_busy(models, now=self.now):
            return "drift is computed after the end of the running slot, which may bring another version", None, seen
        drifts = drift.drift_in(self.wanted, files, start.gate.profiles, self.spec.data)
        exceeded = drift.exceeded(self.wanted, drifts)
        if not exceeded:
            said = f"no drift of the data in service: {drift.largest(drifts)}"
            return said, None, seen.model_copy(update={"compared": key})
        count = f"{len(files)} {'file' if len(files) == 1 else 'files'} at {self.wanted.data}"
        why = f"drift of the data in service from the data of version {version}: {exceeded} ({count})"
        return self._drifted(models, why, seen=seen, compared=key)

    def _drifted(self, models: Models, why: str, *, seen: Seen, compared: str) -> tuple[str, Trigger | None, Seen]:
        files = f"drift {self.window.key}"
        begun = arrival.begun_for(files, models)
        slot, seen = (begun.slot, seen) if begun is not None else self._trained(models, seen)
        if slot is not None:
            known = f"the slot of {slot:%Y-%m-%d %H:%M:%S %Z} has these files, and there is no newer data to train on"
            return f"{why}; {known}", None, seen.model_copy(update={"compared": compared})
        key = arrival.reason_of(files, models)
        version = models.in_service

        def is_unchanged(models: Models) -> bool:
            return models.in_service == version and not _is_busy(models, now=self.now)

        # The files were read after the log, so another look or the schedule may have requested a slot first.
        trigger = self.log.trigger("drift", key, why=why, now=self.now, only_if=is_unchanged)
        if trigger is None:
            why = f"{why}; another slot was requested meanwhile, and the next check compares again"
        return why, trigger, seen

    def _trained(self, models: Models, seen: Seen) -> tuple[datetime | None, Seen]:
        """Find out whether the newest slot, or the slot of the version in service, trained on the data of the present
        window. If so, return this slot.

        Return None if neither slot did. If the names and sizes of the files differ from those of both slots, the files
        are not read.
        """
        windows = dict(models.last_windows())
        if models.in_service is not None and (start := models.slot_of(models.in_service).start) is not None:
            windows[start.slot] = start.window
        same = arrival.same_window(windows, self.window.chosen, self.window.files, seen.hashes)
        if same is None or seen.hashes:
            return same, seen
        seen = _read(self.window, seen, self.spec, now=self.now)
        return arrival.same_window(windows, self.window.chosen, self.window.files, seen.hashes), seen


def _keep(log: ModelsLog, seen: Seen, before: Seen) -> None:
    if seen != before:
        log.store.put(keys.seen_key(log.name), seen.model_dump_json().encode())


def _seen(log: ModelsLog) -> Seen:
    try:
        return Seen.model_validate_json(log.store.get(keys.seen_key(log.name)))
    except (MissingObjectError, ValidationError):  # A newer version of segue wrote this: files have to settle again.
        return Seen()
