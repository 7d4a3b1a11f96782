"""Looks of recovery: one at a time if that saves work, and a watch over whether looks continue to end.

Nothing that a dead look leaves behind prevents the next one: its age is judged by the clock of the store alone,
and a look beside another one does no harm.
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
"""A look that ended more recently than this makes the next one needless: late starts come all at once."""
_LEASE_SECONDS = 20.0
"""How long a look keeps others away. If it takes longer, others begin beside it; a dead look delays nobody."""
LEAST_SILENCE_SECONDS = 180.0
"""Shortest time without the end of a look after which somebody is warned."""
_SILENT_INTERVALS = 3.0
SILENCE_FIX = (
    "Fix: `segue doctor` shows whether the schedule of recover/recover runs, and `prefect worker start --pool parents` "
    "starts a worker that takes its flow runs."
)


def is_needless(*, begun_seconds_ago: float | None, ended_seconds_ago: float | None) -> bool:
    """Whether another look has just ended, or is under way. A negative age is that of a clock that was set back."""
    if ended_seconds_ago is not None and 0 <= ended_seconds_ago < _FRESH_SECONDS:
        return True
    if begun_seconds_ago is None or not 0 <= begun_seconds_ago < _LEASE_SECONDS:
        return False
    return ended_seconds_ago is None or begun_seconds_ago < ended_seconds_ago


def silence_limit_seconds(interval_seconds: float | None) -> float:
    """The time without the end of a look after which somebody is warned, for a schedule with this interval."""
    return max(LEAST_SILENCE_SECONDS, _SILENT_INTERVALS * (interval_seconds or 0.0))


@dataclass(frozen=True)
class Look:
    """A look at a store that has begun."""

    store: Store
    look_id: str
    clock: Clock
    interval_seconds: float | None

    def end(self) -> None:
        """Record that this look has ended. Best effort: if it fails, parents report that no look ended."""
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
            log.warning("end of the look not written store=%s reason=%s", self.store.url, error)


def begin_look(
    store: Store, *, clock: Clock, interval_seconds: float | None = None, is_asked_for: bool = False
) -> Look | None:
    """Begin a look at a store; None when another one makes it needless. A person who asks for one always gets it.

    Raises:
        StoreReadError, StoreWriteError: the store takes no writes, and so no heartbeats of parents.
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
        log.warning("other looks are not known store=%s reason=%s", store.url, error)
        return False
    return is_needless(**ages)


def _age(now: datetime | None, then: datetime | None) -> float | None:
    return (now - then).total_seconds() if now is not None and then is not None else None


def seconds_without_look(store: Store, *, now: datetime) -> float | None:
    """Seconds since a look at the store last ended, if these are too many; else None, also if none ever ended.

    For a single look from outside, by the clock of this machine; a parent has a `SilenceWatch`.

    Raises:
        StoreReadError: the store could not be read.
    """
    last = read_look(store)
    if last is None:
        return None
    age_seconds = (now - (ended_at(store) or last.ended_at)).total_seconds()
    return age_seconds if age_seconds > silence_limit_seconds(last.interval_seconds) else None


def silence_sentence(seconds: float) -> str:
    """A sentence that says what it means if no look has ended for so long."""
    return f"no look of `recover` has ended for {duration(seconds)}: a parent that dies is not started again"


class SilenceWatch:
    """Watches whether looks at a store continue to end, by their counter and the watcher's monotonic clock."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._timeout = HeartbeatTimeout(LEAST_SILENCE_SECONDS)

    def look(self, *, interval_seconds: float | None) -> float | None:
        """Time since a look last ended, if that is too long for a schedule with this interval; None otherwise.

        Raises:
            StoreReadError: the store could not be read.
        """
        last = read_look(self._store)
        known_seconds = interval_seconds or (last.interval_seconds if last is not None else None)
        self._timeout.heartbeat_timeout_seconds = silence_limit_seconds(known_seconds)
        self._timeout.update(last.counter if last is not None else None, at=self._clock.monotonic())
        return self._timeout.unchanged_seconds if self._timeout.is_expired else None
