"""The log of a model's versions in the store: which one is in service, and how it came to that.

It is a log like a run's, one record a slot and put-if-absent, so that of promotions at the same moment each is based on
the one before it, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from segue.clock import Clock
from segue.errors import ModelChangedError, UnknownModelError, UnknownVersionError
from segue.retraining.model_record import RECORD, Candidate, Choice
from segue.runlog import keys
from segue.runlog.entries import Entry, ModelEntry
from segue.runlog.log import RunLog, Stamp
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
class Models:
    """The versions of a model, from 1 on, and everything that happened to them."""

    name: str
    events: tuple[Event, ...]

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
        """The version that was in service before the present one: where a rollback leads."""
        earlier = [event.in_service for event in self.events if event.in_service != self.in_service]
        return earlier[-1] if earlier else None

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

    def __init__(self, store: Store, name: str, *, clock: Clock | None = None) -> None:
        self.store, self.name = store, name
        self._log = RunLog(store, keys.model_folder(name), clock=clock)

    def read(self) -> Models:
        """The versions as they are now.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._log.reload()
        return Models(self.name, tuple(_events(self._log)))

    def require(self) -> Models:
        """The same.

        Raises:
            UnknownModelError: there is no candidate of this name.
        """
        models = self.read()
        if not models.events:
            raise UnknownModelError(name=self.name, store=self.store.url)
        return models

    def add(self, candidate: Candidate) -> Models:
        """Record a candidate, and put it into service if it is promoted. A slot and run are recorded once.

        Raises:
            ModelChangedError: another version is in service than the one that it was compared with, so the comparison
                says nothing; compare again.
            StoreWriteError, StoreReadError: it is not known whether it was recorded; a retry is safe.
        """

        def check(models: Models) -> None:
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

    def _append(self, record: Candidate | Choice, check: Callable[[Models], object]) -> Models:
        def build(stamp: Stamp) -> Entry:
            # Called again after every lost race, with the log as it is then.
            models = Models(self.name, tuple(_events(self._log)))
            check(models)
            if isinstance(record, Candidate) and any(_is_same(record, known) for known in models.candidates.values()):
                raise _RecordedError
            return ModelEntry.model_validate(stamp(epoch=0) | {"record": record.model_dump(mode="json")})

        with suppress(_RecordedError):
            self._log.append(build)
        return self.read()


class _RecordedError(Exception):
    """The candidate was recorded by another process meanwhile."""


def _is_same(one: Candidate, other: Candidate) -> bool:
    return (one.run_id, one.step, one.slot) == (other.run_id, other.step, other.slot)


def _events(log: RunLog) -> Iterator[Event]:
    in_service: int | None = None
    count = 0
    for slot in log.slots:
        if not isinstance(slot.entry, ModelEntry):
            continue
        record = RECORD.validate_python(slot.entry.record)
        if isinstance(record, Candidate):
            count += 1
            version = count
            in_service = version if record.is_promoted else in_service
        else:
            version = in_service = record.version
        yield Event(slot.entry.written_at, record, version, in_service)
