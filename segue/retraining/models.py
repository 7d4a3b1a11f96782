"""The log of a model's versions in the store: which one is in service, and how it came to that.

It is a log like a run's, one record a slot and put-if-absent, so that of promotions at the same moment each is based on
the one before it, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from segue.clock import Clock
from segue.errors import ModelChangedError, SlotEndedError, UnknownVersionError
from segue.retraining.model_record import DONE, IN_WORDS, RECORD, Candidate, Choice, ModelRecord, SlotEnd, SlotStart
from segue.runlog import keys
from segue.runlog.entries import Entry, ModelEntry
from segue.runlog.log import RunLog, Stamp
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores.base import Store


class Event(NamedTuple):
    """One change of what is in service, or a candidate that changed nothing."""

    at: datetime
    record: Candidate | Choice
    version: int
    """The candidate's own, or the one that was chosen."""
    in_service: int | None
    """The version in service afterwards."""


@dataclass(frozen=True)
class SlotState:
    """What the log holds of a slot."""

    slot: datetime
    start: SlotStart | None = None
    """Its newest start; None where it ended before its data was checked."""
    end: SlotEnd | None = None
    """None while it is open."""
    version: int | None = None
    """The version that it trained."""
    ends: int = 0
    """How often it has ended: one that ended without a candidate may be started again."""

    @property
    def is_open(self) -> bool:
        """Whether it was started and has not ended."""
        return self.end is None

    @property
    def outcome_in_words(self) -> str:
        """Its outcome; `open` while it has none."""
        return IN_WORDS[self.end.outcome] if self.end is not None else "open"

    @property
    def is_done(self) -> bool:
        """Whether it trained a candidate; starting it again changes nothing."""
        return self.end is not None and self.end.outcome in DONE


@dataclass(frozen=True)
class Models:
    """The versions of a model, from 1 on, and everything that happened to them."""

    name: str
    events: tuple[Event, ...]
    slots: Mapping[datetime, SlotState]
    """By the time of the slot, in its order."""

    @property
    def candidates(self) -> dict[int, Candidate]:
        """Every version."""
        return {event.version: event.record for event in self.events if isinstance(event.record, Candidate)}

    @property
    def in_service(self) -> int | None:
        """The version in service; None while there is none."""
        return self.events[-1].in_service if self.events else None

    @property
    def before(self) -> int | None:
        """The version that was in service before the present one first was: where a rollback leads."""
        earlier: int | None = None
        for event in self.events:
            if event.in_service == self.in_service:
                return earlier
            earlier = event.in_service
        return None

    def window_before(self, slot: datetime) -> SlotStart | None:
        """The newest earlier slot whose data was accepted: what the next one's data is compared with."""
        starts = (state.start for time, state in self.slots.items() if time < slot)
        accepted = [start for start in starts if start is not None and start.run is not None]
        return accepted[-1] if accepted else None

    def version(self, number: int) -> Candidate:
        """A version.

        Raises:
            UnknownVersionError: there is none of this number.
        """
        known = self.candidates
        if number not in known:
            raise UnknownVersionError(name=self.name, version=number, known=tuple(known))
        return known[number]


class ModelsLog:
    """The versions of one model in a store."""

    def __init__(self, store: Store, name: str, *, spec: StoreSpec | None = None, clock: Clock | None = None) -> None:
        """`spec` is that of the store; its key signs the records, and is needed to read signed ones."""
        self.store, self.name = store, name
        self._log = log_in(store, keys.model_folder(name), spec or StoreSpec(), clock=clock)

    @property
    def log_id(self) -> str:
        """What tells this log from one of the same name in another store; empty before it was read."""
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
            if candidate.is_promoted and models.in_service != candidate.compared_with:
                raise ModelChangedError(
                    name=self.name, compared_with=candidate.compared_with, in_service=models.in_service
                )

        models = self.read()
        if any(_is_same(candidate, known) for known in models.candidates.values()):
            return models
        return self._append(candidate, check)

    def choose(self, version: int, *, why: str) -> Models:
        """Put a version into service by hand.

        Raises:
            UnknownVersionError: there is none of this number.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """
        return self._append(Choice(version=version, why=why), lambda models: models.version(version))

    def open_slot(self, start: SlotStart) -> SlotStart:
        """Record the beginning of a slot; of several starts of one slot, all get the one that was recorded first.

        A slot that ended without a candidate is begun again.

        Raises:
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """

        def check(models: Models) -> None:
            known = models.slots.get(start.slot)
            if known is not None and known.start is not None and (known.is_open or known.is_done):
                raise _RecordedError

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

    def _append(self, record: SlotStart | SlotEnd | Candidate | Choice, check: Callable[[Models], object]) -> Models:
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


class _RecordedError(Exception):
    """Another process has recorded it meanwhile."""


def _is_same(one: Candidate, other: Candidate) -> bool:
    return (one.run_id, one.step, one.slot) == (other.run_id, other.step, other.slot)


def _models(name: str, log: RunLog) -> Models:
    records = [
        (slot.entry.written_at, RECORD.validate_python(slot.entry.record))
        for slot in log.slots
        if isinstance(slot.entry, ModelEntry)
    ]
    return Models(name, tuple(_events(records)), _slots(record for _, record in records))


def _events(records: Iterable[tuple[datetime, ModelRecord]]) -> Iterator[Event]:
    in_service: int | None = None
    count = 0
    for at, record in records:
        if isinstance(record, Candidate):
            count += 1
            version = count
            in_service = version if record.is_promoted else in_service
        elif isinstance(record, Choice):
            version = in_service = record.version
        else:
            continue
        yield Event(at, record, version, in_service)


def _slots(records: Iterable[ModelRecord]) -> dict[datetime, SlotState]:
    found: dict[datetime, SlotState] = {}
    count = 0
    for record in records:
        if isinstance(record, Choice):
            continue
        state = found.get(record.slot, SlotState(record.slot))
        if isinstance(record, SlotStart):
            state = replace(state, start=record, end=None)
        elif isinstance(record, SlotEnd):
            state = replace(state, end=record, ends=state.ends + 1)
        else:
            count += 1
            state = replace(state, version=count)
        found[record.slot] = state
    return dict(sorted(found.items()))
