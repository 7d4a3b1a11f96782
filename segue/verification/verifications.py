"""Defines the scheduled verifications of a run: their records, their log, and the removal of their objects.

The log is written with put-if-absent, like a run's log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime, Field

from segue.clock import Clock
from segue.records import Record, VerdictKind
from segue.runlog import keys
from segue.runlog.entries import Entry, PruneEntry, VerificationEntry
from segue.runlog.history import read_history
from segue.runlog.log import Stamp
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores.base import Store
from segue.verification.drill_comparison import Problem, Resume

log = logging.getLogger(__name__)

_DAY_SECONDS = 86_400
_EARLIER_LOOKED_AT = 5
"""Number of earlier verifications whose runs are removed. Runs of older ones have already been removed."""


class Outcome(StrEnum):
    """The outcome of a verification."""

    PASSED = "passed"
    NOT_CONTINUOUS = "not continuous"
    NOT_PROVEN = "not proven"


class Verification(Record):
    """One verification: an undisturbed and a disturbed run of the same spec, and their comparison."""

    slot: AwareDatetime = Field(description="Scheduled time, which is part of the run ids of the two runs.")
    run_id: str = Field(description="Run id in the verified run spec.")
    workload: str
    steps: int = Field(gt=0)
    undisturbed: str = Field(description="Run id of the undisturbed run.")
    disturbed: str = Field(description="Run id of the disturbed run.")
    outcome: Outcome
    reason: str = Field(description="The outcome in one sentence.")
    is_conclusive: bool = Field(
        description="True if both runs have finished or a resume is broken; otherwise the verification can continue."
    )
    verdict: VerdictKind = Field(description="Worst verdict of the compared resumes; unverified if none was compared.")
    identical: bool = Field(description="True if all components of the two final checkpoints are equal bit for bit.")
    kills: int = Field(0, ge=0, description="Number of kills that ended an attempt on spot.")
    notices: int = Field(0, ge=0, description="Number of notices that ended an attempt on spot.")
    preemptions: int = Field(0, ge=0, description="Number of preemptions of both runs by the pool itself.")
    resumes: tuple[Resume, ...] = ()
    differing: tuple[str, ...] = Field((), description="Components in which the two final checkpoints differ.")
    problems: tuple[Problem, ...] = ()
    seconds: float = Field(0.0, ge=0, description="Paid seconds of both runs.")
    cost: float = Field(0.0, ge=0, description="Cost of both runs, in `currency`.")
    currency: str = ""

    @property
    def is_green(self) -> bool:
        return self.outcome is Outcome.PASSED


@dataclass(frozen=True)
class Green:
    """The series of passed verifications up to the newest one."""

    since: datetime
    """Scheduled time of the first verification of the series."""
    count: int
    """Number of verifications in the series."""
    days: int
    """Number of whole days since the first verification of the series."""

    @property
    def in_words(self) -> str:
        times = "1 verification" if self.count == 1 else f"{self.count} verifications"
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return f"green for {days} ({times} since {self.since:%Y-%m-%d %H:%M %Z})"


def newest_of_each(recorded: Sequence[Verification]) -> tuple[Verification, ...]:
    """Return the newest record of each scheduled time, in the order of time.

    If a verification was continued, it has several records.
    """
    return tuple(sorted({one.slot: one for one in recorded}.values(), key=lambda one: one.slot))


def green(history: Sequence[Verification], *, now: datetime) -> Green | None:
    """Return the series of passed verifications with which `history` ends. `history` is sorted, oldest first.

    If the newest verification did not pass, return None.
    """
    passed = []
    for one in reversed(history):
        if not one.is_green:
            break
        passed.append(one)
    if not passed:
        return None
    since = passed[-1].slot
    return Green(since, len(passed), max(int((now - since).total_seconds() // _DAY_SECONDS), 0))


class VerificationsLog:
    """The verifications of one run's spec in a store."""

    def __init__(self, store: Store, run_id: str, *, spec: StoreSpec | None = None, clock: Clock | None = None) -> None:
        """`spec` is the spec of the store, whose key signs the records and verifies signed records."""
        self.store, self.run_id = store, run_id
        self._log = log_in(store, keys.verifications_folder(run_id), spec or StoreSpec(), clock=clock)

    @property
    def log_id(self) -> str:
        """The unique id of this log. Before the first record, the id is empty."""
        return self._log.log_id

    def read(self) -> tuple[Verification, ...]:
        """Return the verifications, oldest first, one for each scheduled time.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._log.reload()
        return newest_of_each(tuple(self._records()))

    def add(self, verification: Verification) -> tuple[Verification, ...]:
        """Record a verification, and return all verifications.

        If the newest record of this scheduled time has equal content, write no record.

        Raises:
            StoreWriteError, StoreReadError: it is not known whether the record was written. It is safe to call the
                method again.
        """

        def build(stamp: Stamp) -> Entry:
            if verification in newest_of_each(tuple(self._records())):
                raise _RecordedError
            return VerificationEntry.model_validate(stamp(epoch=0) | {"record": verification.model_dump(mode="json")})

        with suppress(_RecordedError):
            self._log.append(build)
        return self.read()

    def _records(self) -> Iterator[Verification]:
        for slot in self._log.slots:
            if isinstance(slot.entry, VerificationEntry):
                yield Verification.model_validate(slot.entry.record)


class _RecordedError(Exception):
    """The log already contains an equal verification."""


def tidy(store: Store, history: Sequence[Verification], newest: Verification, *, spec: StoreSpec | None = None) -> None:
    """Remove the checkpoints of a verification that passed, and the runs of earlier verifications that passed.

    The logs and loss curves of the newest verification stay. If a call cannot remove some objects, a second call
    removes them.

    Raises:
        StoreReadError, StoreWriteError: some objects were not removed. It is safe to call the function again.
    """
    if not newest.is_green:
        return
    for run_id in (newest.undisturbed, newest.disturbed):
        _drop_checkpoints(store, run_id, spec or StoreSpec())
    earlier = [one for one in history if one.slot < newest.slot and one.is_green]
    for one in earlier[-_EARLIER_LOOKED_AT:]:
        for run_id in (one.undisturbed, one.disturbed):
            _drop(store, keys.run_prefix(run_id))


def _drop_checkpoints(store: Store, run_id: str, spec: StoreSpec) -> None:
    runlog = log_in(store, run_id, spec).reload()
    slots = tuple(c.ref.slot for c in read_history(runlog).checkpoints if not c.is_pruned)
    if slots:

        def build(stamp: Stamp) -> Entry:
            return PruneEntry.model_validate(stamp(epoch=0) | {"slots": slots})

        # The record comes before the pruning, so that no reader takes a pruned checkpoint for a damaged one.
        runlog.append(build)
    _drop(store, keys.attempts_prefix(run_id))


def _drop(store: Store, prefix: str) -> None:
    found = [item.key for item in store.list_objects(prefix)]
    if found:
        store.delete(found)
        log.info("objects of a verification removed objects=%d prefix=%s", len(found), prefix)
