"""Reports that a trainer waits in the queue of a cluster.

A trainer in the queue has no machine yet, but its segment already runs. During the wait, the segment overwrites a small
object in the store. This object tells the parent that the attempt is not booting yet, and why the attempt waits. The
loss of an object has no other effect.
"""

from __future__ import annotations

import logging

from pydantic import Field

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.errors import MissingObjectError
from segue.records import Record, SegmentPlan
from segue.runlog import keys
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import Store, StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 10.0
"""Longest time in seconds between two reports, and between two reads of a remote store."""


class QueueStatus(Record):
    """The reason why a trainer waits. If the counter changes, the segment is alive."""

    counter: int = Field(ge=0)
    why: str | None = Field(description="Reason for the wait; None after the trainer got its machines.")


class QueueReporter:
    """Writes, in the segment, the reason why the trainer waits."""

    def __init__(self, spec: RunSpec, plan: SegmentPlan, *, clock: Clock) -> None:
        self._spec, self._plan, self._clock = spec, plan, clock
        self._store: Store | None = None
        self._counter = 0
        self._reported: str | None = None
        self._report_at = float("-inf")

    def look(self, why: str | None) -> None:
        """Write the reason for the wait, if a report is due. Without a wait, the method never writes."""
        at = self._clock.monotonic()
        is_changed = why != self._reported
        if why is None and not is_changed:
            return
        if not is_changed and at < self._report_at:
            return
        self._report_at = at + min(_PERIOD_SECONDS, self._spec.liveness.heartbeat_timeout_seconds / 3)
        self._counter += 1
        status = QueueStatus(counter=self._counter, why=why)
        try:
            if self._store is None:
                self._store = open_log(self._spec, clock=self._clock).store
            key = keys.queue_key(self._spec.run_id, self._plan.segment, self._plan.attempt)
            self._store.put(key, status.model_dump_json().encode(), durable=False)
        except StoreWriteError as error:
            log.warning("could not report the wait in the queue reason=%s", error)
            return
        self._reported = why


class QueueWatch:
    """Reads, in the parent, the reason why an attempt waits before its claim."""

    def __init__(self, store: Store, spec: RunSpec, plan: SegmentPlan, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._is_asked = spec.trains_elsewhere
        self._key = keys.queue_key(spec.run_id, plan.segment, plan.attempt)
        self._alive = HeartbeatTimeout(spec.liveness.heartbeat_timeout_seconds)
        self._why: str | None = None

    def look(self) -> None:
        """Read the reason for the wait. If the store fails, the last known reason remains valid."""
        if not self._is_asked:
            return
        try:
            status = QueueStatus.model_validate_json(self._store.get(self._key))
        except (MissingObjectError, ValueError, StoreReadError):
            status = None
        self._alive.update(status.counter if status is not None else None, at=self._clock.monotonic())
        if status is not None:
            self._why = status.why

    @property
    def why(self) -> str | None:
        """Return the reason for the trainer's wait.

        Return None if the trainer does not wait, or if its segment no longer reports.
        """
        return None if self._alive.is_expired else self._why
