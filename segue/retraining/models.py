"""The log of a model's versions in the store: the version in service, and all earlier promotions and decisions.

The log of versions works like the log of a run. Each record has its own slot and is written with put-if-absent. If
several processes promote a version at the same moment, each promotion follows the earlier promotions in the log, and no
promotion is lost.
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
        """`spec` is the spec of the store. The spec's key signs and verifies the records."""
        self.store, self.name = store, name
        self._log = log_in(store, keys.model_folder(name), spec or StoreSpec(), clock=clock)

    @property
    def log_id(self) -> str:
        """The id that distinguishes this log from a log of the same name in another store.

        The id is empty before the first read of the log.
        """
        return self._log.log_id

    def read(self) -> Models:
        """Read the current state of the versions.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._log.reload()
        return _models(self.name, self._log)

    def add(self, candidate: Candidate) -> Models:
        """Record a candidate. If the candidate is promoted, put it into service.

        Each slot and each run is recorded only once.

        Raises:
            ModelChangedError: the candidate was compared with a version that is no longer in service. Compare the
                candidate again.
            SlotEndedError: the slot was superseded or cancelled before this call.
            StoreWriteError, StoreReadError: the candidate may or may not be recorded. It is safe to call the method
            again.
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
        """Put the version that a person chose into service.

        Raises:
            UnknownVersionError: there is no version with this number.
            StoreWriteError, StoreReadError: the choice may or may not be recorded. It is safe to call the method again.
        """
        return self._append(Choice(version=version, why=why), lambda models: models.version(version))

    def decide(self, decision: Decision, *, now: datetime) -> Models:
        """Record a person's answer about a candidate that waits for a decision, and end the candidate's slot.

        If several people answer, the first answer counts. An answer after the time to decide is recorded as expired,
        and the candidate is not promoted. After the call, the slot of the version contains the valid decision, which
        may be another person's.

        Raises:
            UnknownVersionError: there is no version with this number.
            NotWaitingError: no person was asked about the version, or its slot was cancelled.
            ModelChangedError: the candidate is approved, but was compared with a version that is no longer in service.
            StoreWriteError, StoreReadError: the answer may or may not be recorded. It is safe to call the method again.
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
        """Request a slot. Its time is `now` in whole seconds, or the next free second. Each key gets only one slot.

        Return None if `only_if` is false for the state at the time of the write. For example, another process may have
        begun a slot or changed the version in service.

        Raises:
            StoreWriteError, StoreReadError: the request may or may not be recorded. It is safe to call the method
            again.
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
        """Record the start of a slot.

        Repeated calls return the start that was recorded first. A slot that ended without a candidate is started again.
        If `is_for_new_data` is true, and another slot trains or has trained on the files of this slot, this slot is not
        started.

        Raises:
            SameDataError: the slot needs new data, and another slot trains or has trained on its files.
            StoreWriteError, StoreReadError: the start may or may not be recorded. It is safe to call the method again.
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
        """Record the outcome of a slot. The call has no effect if an outcome is recorded.

        Raises:
            StoreWriteError, StoreReadError: the outcome may or may not be recorded. It is safe to call the method
            again.
        """

        def check(models: Models) -> None:
            known = models.slots.get(end.slot)
            if known is not None and not known.is_open:
                raise _RecordedError

        return self._append(end, check)

    def _append(self, record: ModelRecord, check: Callable[[Models], object]) -> Models:
        def build(stamp: Stamp) -> Entry:
            # This is called again with the newer log each time another process has written first.
            models = _models(self.name, self._log)
            check(models)
            if isinstance(record, Candidate) and any(_is_same(record, known) for known in models.candidates.values()):
                raise _RecordedError
            return ModelEntry.model_validate(stamp(epoch=0) | {"record": record.model_dump(mode="json")})

        with suppress(_RecordedError):
            self._log.append(build)
        return self.read()


def model_names(store: Store) -> list[str]:
    """Return the names of all models in a store.

    Raises:
        StoreReadError: the store could not be read.
    """
    return [name for folder in store.folders() if (name := keys.model_of(folder)) is not None]


def expired(version: int, decide_by: datetime) -> Decision:
    """Return the decision that ends the wait for a person after the time limit."""
    return Decision(version=version, answer="expired", why=f"nobody decided by {decide_by:%Y-%m-%d %H:%M %Z}")


class _RecordedError(Exception):
    """Cancels an append, because another process has already written the same record."""


def require_new_data(models: Models, window: Window, *, slot: datetime) -> None:
    """Check that no other slot trains, or has trained, on the files of a window.

    Raises:
        SameDataError: another slot trains, or has trained, on these files.
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
