"""Recovers runs whose parent is dead, by heartbeats of parents and a search for open runs with a dead parent.

A parent may die, restart or lose its worker at any moment. The parent's record in the store shows that the run is open.
The counter in the record shows whether the parent is alive. A new parent continues the run from the run's log.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.errors import ParentAliveError
from segue.process import ProcessRef, this_machine
from segue.records import ParentRecord
from segue.runlog.parents import parents, probe_writes, read_parent, remove_parent, write_parent
from segue.spec import RunSpec
from segue.stores.base import Store, StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_MOST_PERIOD_SECONDS = 5.0
_MOST_TIMEOUT_SECONDS, _MOST_REMOTE_TIMEOUT_SECONDS = 20.0, 25.0
_PERIOD_PER_HEARTBEAT = 2.5
"""Heartbeat period of a parent, as a multiple of the heartbeat period of a trainer.

A parent waits for hours, so its period is longer. In a remote store, its period is even longer.
"""
_LOOK_SECONDS, _REMOTE_LOOK_SECONDS = 0.5, 2.5


class ParentHeartbeat:
    """Writes the heartbeat of this process as the parent of a run. At most one living parent holds a run's record."""

    def __init__(
        self,
        store: Store,
        spec: RunSpec,
        *,
        clock: Clock,
        flow_run_id: str | None = None,
        server_id: str = "",
        adopted_by: str | None = None,
    ) -> None:
        """`adopted_by` is the heartbeat of the flow run's slot, if the slot has its own heartbeat."""
        liveness = spec.liveness
        self._store, self._clock = store, clock
        period_seconds = min(_MOST_PERIOD_SECONDS, _PERIOD_PER_HEARTBEAT * liveness.heartbeat_seconds)
        self.period_seconds = liveness.remote_look_seconds if store.is_remote else period_seconds
        self._record = ParentRecord(
            run_id=spec.run_id,
            parent_id=uuid.uuid4().hex,
            flow_run_id=flow_run_id,
            server_id=server_id,
            adopted_by=adopted_by,
            host=socket.gethostname(),
            machine=this_machine(),
            process=str(ProcessRef.this()),
            timeout_seconds=_timeout_seconds(store, spec),
            beat_at=clock.now(),
        )
        self._stop = threading.Event()
        self._replaced_by: ParentRecord | None = None
        self._waiting: str | None = None
        self._unguarded: str | None = None
        self._server_id = server_id

    def take_over(self, *, after: str | None = None) -> None:
        """Become the run's parent as soon as no other parent can be alive.

        `after` is the id of a parent that is known to be dead.

        Raises:
            ParentAliveError: another parent is alive. The method has changed nothing. StoreReadError, StoreWriteError:
            the store could not be used.
        """
        watch = OrphanWatch(self._store, clock=self._clock)
        while (found := read_parent(self._store, self._record.run_id)) is not None:
            if not found.parent_id or found.parent_id == after:
                break
            life = watch.judge(found)
            if life is Life.ALIVE:
                raise _already_run_by(found)
            if life is Life.DEAD:
                break
            self._clock.sleep(_REMOTE_LOOK_SECONDS if self._store.is_remote else _LOOK_SECONDS)
        write_parent(self._store, self._record)

    def require_own(self) -> None:
        """Raise an error if another parent has taken over the run.

        Raises:
            ParentAliveError: another parent holds the run's record.
        """
        if self._replaced_by is not None:
            raise _already_run_by(self._replaced_by)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write heartbeats until the block ends. After an exception, the run stays open for another parent."""
        thread = threading.Thread(target=self._work, name="segue-parent-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._end_thread(thread)
            self._beat(has_left=True)
            raise
        self._end_thread(thread)

    def show(self, waiting: str | None) -> None:
        """Show in the next heartbeat the reason why the run waits. The value None means that the run does not wait."""
        self._waiting = waiting

    def show_guard(self, *, server_id: str, unguarded: str | None) -> None:
        """Show in the next heartbeat which server would restart this parent, or why no server would.

        A server that lost its database has a new id. If `server_id` is empty, the server is not known, and the
        heartbeat keeps the last known id.
        """
        self._server_id = server_id or self._server_id
        self._unguarded = unguarded

    def close(self) -> None:
        """Remove the record of the parent, because the run has ended.

        If the removal fails, recovery removes the record later.
        """
        try:
            remove_parent(self._store, self._record)
        except (StoreReadError, StoreWriteError) as error:
            log.warning("record of the parent not removed reason=%s", error)

    def _end_thread(self, thread: threading.Thread) -> None:
        self._stop.set()
        thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self.period_seconds) and self._replaced_by is None:
            self._beat()

    def _beat(self, *, has_left: bool = False) -> None:
        try:
            found = read_parent(self._store, self._record.run_id)
            if found is None or found.parent_id != self._record.parent_id:
                # A missing record means that another parent has removed it, because the run has ended.
                self._replaced_by = found or self._record.model_copy(update={"host": "another host"})
                log.warning("another parent has taken over the run host=%s", self._replaced_by.host)
                return
            changed = {"counter": self._record.counter + 1, "has_left": has_left, "beat_at": self._clock.now()}
            changed |= {"waiting": self._waiting, "unguarded": self._unguarded, "server_id": self._server_id}
            self._record = self._record.model_copy(update=changed)
            write_parent(self._store, self._record)
        except Exception as error:
            # Any exception is caught, because a living parent would seem to be dead if a failed write ended this
            # thread.
            log.warning("heartbeat of the parent not written reason=%s", error)


class Life(StrEnum):
    """Whether a parent is alive."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class OrphanWatch:
    """Finds the dead parents of a store's open runs by repeated reads of the parents' records."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.found = 0
        """Number of open runs that `find` has checked."""
        self._first: dict[str, ParentRecord] = {}
        self._timeouts: dict[tuple[str, str], HeartbeatTimeout] = {}

    def judge(self, record: ParentRecord) -> Life:
        """Return whether the parent of a newly read record is alive.

        A parent is dead if it has left, if its process on this host has ended, or if its counter has not changed for
        the parent's timeout. A parent is alive if its counter has changed since the first read.
        """
        if record.has_left or _has_ended_here(record):
            return Life.DEAD
        timeout = self._timeouts.setdefault((record.run_id, record.parent_id), HeartbeatTimeout(record.timeout_seconds))
        timeout.update(record.counter, at=self._clock.monotonic())
        if timeout.is_expired:
            return Life.DEAD
        first = self._first.setdefault(record.run_id, record)
        is_same = (first.parent_id, first.counter) == (record.parent_id, record.counter)
        return Life.UNKNOWN if is_same else Life.ALIVE

    def find(self) -> list[ParentRecord]:
        """Return the records of the dead parents of a store's open runs.

        The method blocks until it knows for each parent whether it is alive or dead.

        Raises:
            StoreReadError, StoreWriteError: the store does not respond. Parents then cannot write heartbeats either.
        """
        probe_writes(self._store)
        dead: list[ParentRecord] = []
        unknown = {record.run_id: record for record in parents(self._store)}
        self.found = len(unknown)
        while unknown:
            for run_id, record in list(unknown.items()):
                life = self.judge(record)
                if life is not Life.UNKNOWN:
                    del unknown[run_id]
                if life is Life.DEAD:
                    dead.append(record)
            if not unknown:
                break
            self._clock.sleep(_REMOTE_LOOK_SECONDS if self._store.is_remote else _LOOK_SECONDS)
            looked = {run_id: read_parent(self._store, run_id) for run_id in unknown}
            unknown = {run_id: record for run_id, record in looked.items() if record is not None}
        if dead:
            probe_writes(self._store)
        return dead


def register_start(store: Store, spec: RunSpec, *, clock: Clock, server_id: str = "") -> None:
    """Record the request to start a run, so that recovery finds the run if its parent never begins.

    Raises:
        StoreReadError, StoreWriteError: the function recorded nothing. It is safe to call the function again.
    """
    if read_parent(store, spec.run_id) is None:
        timing = {"timeout_seconds": _timeout_seconds(store, spec), "beat_at": clock.now()}
        write_parent(store, ParentRecord(run_id=spec.run_id, server_id=server_id, **timing))


def forget_parent(store: Store, run_id: str) -> None:
    """Remove the record of a run that a person has ended, so that recovery does not restart the run.

    The function only logs failures.
    """
    try:
        found = read_parent(store, run_id)
        if found is not None:
            remove_parent(store, found)
    except (StoreReadError, StoreWriteError) as error:
        log.warning("record of the parent not removed reason=%s", error)


def withdraw_start(store: Store, run_id: str) -> None:
    """Remove the record of a start that segue refused before a parent began. The function only logs failures."""
    try:
        found = read_parent(store, run_id)
        if found is not None and not found.parent_id:
            remove_parent(store, found)
    except (StoreReadError, StoreWriteError) as error:
        log.warning("record of the refused start not removed reason=%s", error)


def _timeout_seconds(store: Store, spec: RunSpec) -> float:
    most_seconds = _MOST_REMOTE_TIMEOUT_SECONDS if store.is_remote else _MOST_TIMEOUT_SECONDS
    return min(most_seconds, spec.liveness.heartbeat_timeout_seconds)


def _has_ended_here(record: ParentRecord) -> bool:
    is_here = bool(record.machine) and record.machine == this_machine()
    return is_here and not ProcessRef.parse(record.process).is_alive()


def _already_run_by(record: ParentRecord) -> ParentAliveError:
    return ParentAliveError(run_id=record.run_id, host=record.host, flow_run_id=record.flow_run_id)
