"""Manages the checks of a store for dead parents.

segue avoids unnecessary checks, and warns if no check has completed for a long time. A killed check does not prevent
the next check, because its age is measured by the clock of the store. Two simultaneous checks do no harm.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from datetime import datetime

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.runlog.looks import (
    LookRecord,
    begun_at,
    ended_at,
    probed_at,
    read_look,
    write_begun,
    write_look,
)
from segue.runlog.parents import probe_writes
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.units import duration

log = logging.getLogger(__name__)

_FRESH_SECONDS = 10.0
"""Seconds after a check for which another check is unnecessary. Delayed checks all start at once."""
_LEASE_SECONDS = 20.0
"""Seconds for which a started check prevents other checks from starting.

A killed check delays other checks for at most this number of seconds.
"""
LEAST_SILENCE_SECONDS = 180.0
"""Shortest time in seconds without a completed check after which segue warns."""
_SILENT_INTERVALS = 3.0
SILENCE_FIX = (
    "Fix: `segue doctor` shows whether the schedule of recover/recover runs, and `prefect worker start --pool parents` "
    "starts a worker that takes its flow runs."
)


def is_needless(*, begun_seconds_ago: float | None, ended_seconds_ago: float | None) -> bool:
    """Whether another check has just ended or is running. An age is negative if the store's clock went back."""
    if ended_seconds_ago is not None and 0 <= ended_seconds_ago < _FRESH_SECONDS:
        return True
    if begun_seconds_ago is None or not 0 <= begun_seconds_ago < _LEASE_SECONDS:
        return False
    return ended_seconds_ago is None or begun_seconds_ago < ended_seconds_ago


def silence_limit_seconds(interval_seconds: float | None) -> float:
    """Return the seconds without a completed check after which segue warns, for a schedule with this interval."""
    return max(LEAST_SILENCE_SECONDS, _SILENT_INTERVALS * (interval_seconds or 0.0))


@dataclass(frozen=True)
class Look:
    """A running check of a store."""

    store: Store
    look_id: str
    clock: Clock
    interval_seconds: float | None

    def end(self) -> None:
        """Record the end of this check. If the write fails, parents report that no check has ended."""
        try:
            before = read_look(self.store)
            known_seconds = before.interval_seconds if before is not None else None
            record = LookRecord(
                look_id=self.look_id,
                counter=before.counter + 1 if before is not None else 1,
                interval_seconds=self.interval_seconds or known_seconds,
                ended_at=self.clock.now(),
            )
            write_look(self.store, record)
        except (StoreReadError, StoreWriteError) as error:
            log.warning("could not record the end of this check store=%s reason=%s", self.store.url, error)


def begin_look(
    store: Store, *, clock: Clock, interval_seconds: float | None = None, is_asked_for: bool = False
) -> Look | None:
    """Begin a check of a store.

    Return None if another check makes this check unnecessary. A check that a person requests always begins.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. Parents therefore cannot write heartbeats either.
    """
    probe_writes(store)
    if not is_asked_for and _has_another(store):
        return None
    look = Look(store, uuid.uuid4().hex, clock, interval_seconds)
    write_begun(store, look.look_id)
    return look


def _has_another(store: Store) -> bool:
    try:
        now = probed_at(store)
        ages = {"begun_seconds_ago": _age(now, begun_at(store)), "ended_seconds_ago": _age(now, ended_at(store))}
    except StoreReadError as error:
        log.warning("could not read the records of other checks store=%s reason=%s", store.url, error)
        return False
    return is_needless(**ages)


def _age(now: datetime | None, then: datetime | None) -> float | None:
    return (now - then).total_seconds() if now is not None and then is not None else None


def seconds_without_look(store: Store, *, now: datetime) -> float | None:
    """Return the seconds since the last completed check, if they exceed the limit.

    Return None if this time is within the limit, or if no check has ended yet. The function uses the clock of this
    machine and is for a single call. A parent uses a `SilenceWatch` instead.

    Raises:
        StoreReadError: the store could not be read.
    """
    last = read_look(store)
    if last is None:
        return None
    age_seconds = (now - (ended_at(store) or last.ended_at)).total_seconds()
    return age_seconds if age_seconds > silence_limit_seconds(last.interval_seconds) else None


def silence_sentence(seconds: float) -> str:
    """Return a sentence stating that no check has completed for `seconds`, and the consequence."""
    return f"no check by `recover` has completed for {duration(seconds)}: dead parents are not started again"


class SilenceWatch:
    """Detects missing checks of a store by the counter of checks and the watcher's monotonic clock."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._timeout = HeartbeatTimeout(LEAST_SILENCE_SECONDS)

    def look(self, *, interval_seconds: float | None) -> float | None:
        """Return the seconds since the last completed check if they exceed the limit for this interval.

        Return None if the seconds are within the limit.

        Raises:
            StoreReadError: the store could not be read.
        """
        last = read_look(self._store)
        known_seconds = interval_seconds or (last.interval_seconds if last is not None else None)
        self._timeout.heartbeat_timeout_seconds = silence_limit_seconds(known_seconds)
        self._timeout.update(last.counter if last is not None else None, at=self._clock.monotonic())
        return self._timeout.unchanged_seconds if self._timeout.is_expired else None
