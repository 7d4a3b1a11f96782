"""The log of a model's versions in the store: which one is in service, and how it came to that.

It is a log like a run's, with one record per slot and put-if-absent: each of several promotions at the same moment is
based on the one before it, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from segue.clock import Clock
from segue.errors import ModelChangedError, NotWaitingError, SameDataError, SlotEndedError
from segue.retraining.history import Models, models_of
from segue.retraining.model_record import (
    RECORD,
    Candidate,
    Cause,
    Choice,
    Decision,
    ModelRecord,
    SlotEnd,
    SlotStart,
    Trigger,
)
from segue.retraining.spec import Window
from segue.runlog import keys
from segue.runlog.entries import Entry, ModelEntry
from segue.runlog.log import RunLog, Stamp
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores.base import Store


class ModelsLog:
    """The versions of one model in a store."""

    def __init__(self, store: Store, name: str, *, spec: StoreSpec | None = None, clock: Clock | None = None) -> None:
        """`spec` is the spec of the store; its key signs the records, and is needed to read signed ones."""
        self.store, self.name = store, name
        self._log = log_in(store, keys.model_folder(name), spec or StoreSpec(), clock=clock)

    @property
    def log_id(self) -> str:
        """The id that tells this log from one of the same name in another store; empty before the log was read."""
        return self._log.log_id

    def read(self) -> Models:
        """The versions as they are now.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._log.reload()
        return _models(self.name, self._log)

    def add(self, candidate: Candidate) -> Models:
        """Record a candidate, and put it into service if it is promoted. A slot and run are recorded once.

        Raises:
            ModelChangedError: another version is in service than the one that it was compared with, so the comparison
                says nothing; compare again.
            SlotEndedError: its slot was superseded or cancelled meanwhile.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """

        def check(models: Models) -> None:
            known = models.slots.get(candidate.slot)
            if known is not None and known.end is not None:
                raise SlotEndedError(outcome=known.outcome_in_words)
            if candidate.is_promoted or candidate.decide_by is not None:
                _require_unchanged(models, candidate)

        models = self.read()
        if any(_is_same(candidate, known) for known in models.candidates.values()):
            return models
        return self._append(candidate, check)

    def choose(self, version: int, *, why: str) -> Models:
        """Put a version into service by hand.

        Raises:
            UnknownVersionError: there is no version of this number.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """
        return self._append(Choice(version=version, why=why), lambda models: models.version(version))

    def decide(self, decision: Decision, *, now: datetime) -> Models:
        """Record the answer about a candidate that waits for one, which ends its slot. The first answer counts.

        One that comes after the time to decide is recorded as expired, and nothing is promoted. What was decided is in
        the slot of the version, whoever decided it.

        Raises:
            UnknownVersionError: there is no such version.
            NotWaitingError: nobody was asked about it, or its slot was cancelled.
            ModelChangedError: it is approved, and another version is in service than the one that it was compared with.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """
        decide_by = self.read().version(decision.version).decide_by
        if decide_by is not None and now >= decide_by:
            decision = expired(decision.version, decide_by)

        def check(models: Models) -> None:
            state = models.slot_of(decision.version)
            if state.decision is not None or (state.decide_by is not None and state.is_done):
                raise _RecordedError
            if not state.is_waiting:
                raise NotWaitingError(name=self.name, version=decision.version, outcome=state.outcome_in_words)
            if decision.answer == "approved":
                _require_unchanged(models, models.version(decision.version))

        return self._append(decision, check)

    def trigger(
        self,
        cause: Cause,
        key: str,
        *,
        why: str,
        now: datetime,
        only_if: Callable[[Models], bool] = lambda _: True,
    ) -> Trigger | None:
        """Ask for a slot, at the second of `now` or the next free one. A key has one slot: the first asked for.

        None if `only_if` does not hold at that moment: a slot has begun meanwhile, or another version is in service.

        Raises:
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """
        slot = now.replace(microsecond=0)

        def check(models: Models) -> None:
            if slot in models.slots or any(slot == time or key == each.key for time, each in models.triggers.items()):
                raise _RecordedError
            if not only_if(models):
                raise _RecordedError

        while True:
            models = self._append(Trigger(slot=slot, cause=cause, key=key, why=why), check)
            known = [each for each in models.triggers.values() if each.key == key]
            if known:
                return known[0]
            if not only_if(models):
                return None
            slot += timedelta(seconds=1)

    def open_slot(self, start: SlotStart, *, is_for_new_data: bool = False) -> SlotStart:
        """Record the beginning of a slot; of several starts of one slot, all get the one that was recorded first.

        A slot that ended without a candidate is begun again. A slot that needs new data is not begun beside or after
        another slot with the same files.

        Raises:
            SameDataError: it needs new data, and another slot trains or has trained on its files.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """

        def check(models: Models) -> None:
            known = models.slots.get(start.slot)
            if known is not None and known.start is not None and (known.is_open or known.is_done):
                raise _RecordedError
            if is_for_new_data:
                require_new_data(models, start.window, slot=start.slot)

        known = self._append(start, check).slots[start.slot].start
        assert known is not None
        return known

    def end_slot(self, end: SlotEnd) -> Models:
        """Record the outcome of a slot, unless it has one.

        Raises:
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """

        def check(models: Models) -> None:
            known = models.slots.get(end.slot)
            if known is not None and not known.is_open:
                raise _RecordedError

        return self._append(end, check)

    def _append(self, record: ModelRecord, check: Callable[[Models], object]) -> Models:
        def build(stamp: Stamp) -> Entry:
            # Called again after every lost race, with the log as it is then.
            models = _models(self.name, self._log)
            check(models)
            if isinstance(record, Candidate) and any(_is_same(record, known) for known in models.candidates.values()):
                raise _RecordedError
            return ModelEntry.model_validate(stamp(epoch=0) | {"record": record.model_dump(mode="json")})

        with suppress(_RecordedError):
            self._log.append(build)
        return self.read()


def model_names(store: Store) -> list[str]:
    """The names of the models of a store.

    Raises:
        StoreReadError: the store could not be read.
    """
    return [name for folder in store.folders() if (name := keys.model_of(folder)) is not None]


def expired(version: int, decide_by: datetime) -> Decision:
    """The end of a wait in which nobody has decided."""
    return Decision(version=version, answer="expired", why=f"nobody decided by {decide_by:%Y-%m-%d %H:%M %Z}")


class _RecordedError(Exception):
    """Another process has recorded it meanwhile."""


def require_new_data(models: Models, window: Window, *, slot: datetime) -> None:
    """Check that no other slot trains, or has trained, on the same files.

    Raises:
        SameDataError: one does.
    """
    same = models.trained_on(window, but=slot)
    if same is not None:
        raise SameDataError(name=models.name, slot=same)


def _require_unchanged(models: Models, candidate: Candidate) -> None:
    if models.in_service != candidate.compared_with:
        raise ModelChangedError(name=models.name, compared_with=candidate.compared_with, in_service=models.in_service)


def _is_same(one: Candidate, other: Candidate) -> bool:
    return (one.run_id, one.step, one.slot) == (other.run_id, other.step, other.slot)


def _models(name: str, log: RunLog) -> Models:
    return models_of(
        name,
        (
            (slot.entry.written_at, RECORD.validate_python(slot.entry.record))
            for slot in log.slots
            if isinstance(slot.entry, ModelEntry)
        ),
    )
