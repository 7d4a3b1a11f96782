"""The wait of an attempt in a queue behind its segment: the segment has a process, but its trainer has no machine yet.

The segment overwrites a small object in the store as long as that lasts. Its parent then does not take the attempt for
a booting one, and shows what it waits for. The loss of an object costs only this.
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
"""Longest time between two reports, and between two reads of a remote store."""


class QueueStatus(Record):
    """A report of what the trainer of an attempt waits for. A changing counter shows that its segment is alive."""

    counter: int = Field(ge=0)
    why: str | None = Field(description="What it waits for; None once it has its machines.")


class QueueReporter:
    """The segment's side: reports what its trainer waits for."""

    def __init__(self, spec: RunSpec, plan: SegmentPlan, *, clock: Clock) -> None:
        self._spec, self._plan, self._clock = spec, plan, clock
        self._store: Store | None = None
        self._counter = 0
        self._reported: str | None = None
        self._report_at = float("-inf")

    def look(self, why: str | None) -> None:
        """Report the wait, if that is due. Without a wait nothing is ever written."""
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
            log.warning("the wait in the queue is not reported reason=%s", error)
            return
        self._reported = why


class QueueWatch:
    """The parent's side: reads what an attempt waits for before it claims the run."""

    def __init__(self, store: Store, spec: RunSpec, plan: SegmentPlan, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._is_asked = spec.trains_elsewhere
        self._key = keys.queue_key(spec.run_id, plan.segment, plan.attempt)
        self._alive = HeartbeatTimeout(spec.liveness.heartbeat_timeout_seconds)
        self._why: str | None = None

    def look(self) -> None:
        """Read what the segment reports; if the store fails, what was known remains."""
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
        """What it waits for; None when it does not wait, or its segment reports nothing any more."""
        return None if self._alive.is_expired else self._why
