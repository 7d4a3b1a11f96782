"""Writes the records about the starts of an attempt to the run's log once."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from segue.records import SegmentPlan
from segue.runlog.entries import Entry, StartEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog, Stamp

Outcome = Literal["requested", "slow", "claimed", "start_failed", "withdrawn"]


def note_start(
    runlog: RunLog, plan: SegmentPlan, number: int, outcome: Outcome, *, seconds: float, why: str = ""
) -> None:
    """Append the outcome of a start on the pool of `plan`, if the log does not contain it yet.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again.
    """
    place = {"segment": plan.segment, "attempt": plan.attempt, "number": number, "outcome": outcome}
    facts = place | {"deployment": plan.deployment, "seconds": round(max(seconds, 0.0), 3), "reason": why}

    def build(stamp: Stamp) -> Entry:
        known = read_history(runlog).starts_of(plan.segment, plan.attempt)
        if any((entry.number, entry.outcome) == (number, outcome) for entry in known):
            raise _KnownError
        return StartEntry.model_validate(stamp(epoch=0) | facts)

    with suppress(_KnownError):
        runlog.append(build)


class _KnownError(Exception):
    """Cancels an append, because the log already has the record."""
