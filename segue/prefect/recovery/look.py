"""Checks one store for recovery, and checks all stores in parallel, so that a store that hangs blocks no other store.

The module also ends flow runs that were cancelled before their process began.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from segue.clock import SystemClock
from segue.controller.recovery import OrphanWatch
from segue.controller.recovery_looks import begin_look
from segue.errors import SegueError
from segue.prefect.api import SILENCE
from segue.prefect.parent_clock import clock_of
from segue.prefect.recovery.dead_parents import recover_run
from segue.prefect.recovery.segment_states import settle_left
from segue.prefect.recovery.slot_parents import is_slot, recover_slot
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import Store, StoreGoneError

log = logging.getLogger(__name__)

_SIDE_BY_SIDE = 8
_LIMIT_SECONDS = 240.0
"""Time limit in seconds for the checks of all stores together.

If a store hangs, the next scheduled check tries the store again, in another process.
"""
_NO_STORE = (
    "no store was looked at, because this Prefect server knows none: no parent has run here. Fix: none is needed for a "
    "new server; if the server has lost its database, run `segue recover --store URL --take-over` for each store"
)
_PATIENCE = timedelta(seconds=120)
"""Time for a worker to end the process or job of a cancelled flow run."""
_PAGE = 200
_NEVER_BEGUN = FlowRunFilter(
    tags=FlowRunFilterTags(all_=["segue"]),
    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
    start_time=FlowRunFilterStartTime(is_null_=True),
)


@dataclass(frozen=True)
class Looked:
    """The results of a check of one or more stores."""

    stores: int = 0
    """Number of stores whose open runs were read."""
    open_runs: int = 0
    done: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """A text for each store that this check left out: another check handles the store, or it no longer exists."""

    def __add__(self, other: Looked) -> Looked:
        return Looked(
            self.stores + other.stores,
            self.open_runs + other.open_runs,
            self.done + other.done,
            self.troubles + other.troubles,
            self.left + other.left,
        )

    @property
    def lines(self) -> list[str]:
        """Lines of text about the stores, the actions and the problems of this check."""
        if not (self.stores or self.troubles or self.left):
            return [_NO_STORE, *self.done]
        looked = f"looked at {_count(self.open_runs, 'open run')} in {_count(self.stores, 'store')}"
        if not (self.done or self.troubles):
            looked += ": every open run has a living parent"
        return [*([looked] if self.stores else []), *self.done, *self.left, *self.troubles]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def look_at(
    client: SyncPrefectClient,
    store: StoreSpec,
    *,
    take_over: bool = False,
    interval_seconds: float | None = None,
    is_asked_for: bool = True,
) -> Looked:
    """Recover the runs of one store. If `is_asked_for` is False, skip a store that another check has just handled."""
    clock = SystemClock()
    try:
        opened = open_store(store)
        look = begin_look(opened, clock=clock, interval_seconds=interval_seconds, is_asked_for=is_asked_for)
        if look is None:
            return Looked(left=(f"another check of {store.url} has just been made",))
        found = _recovered(client, store, opened, take_over=take_over)
    except StoreGoneError as error:
        return Looked(left=(str(error),))  # The store may have been deleted on purpose.
    except SegueError as error:
        return Looked(troubles=(str(error),))
    look.end()
    return found


def _recovered(client: SyncPrefectClient, store: StoreSpec, opened: Store, *, take_over: bool) -> Looked:
    clock, done, troubles = clock_of(client), [], []
    watch = OrphanWatch(opened, clock=clock)
    for record in watch.find():
        try:
            if is_slot(record):
                done.append(f"{record.run_id}: {recover_slot(client, store, record, take_over=take_over)}")
                continue
            runlog = log_in(opened, record.run_id, store, clock=clock).reload()
            what, _ = recover_run(client, runlog, record, clock=clock, take_over=take_over)
        except (SegueError, ObjectNotFound, *SILENCE) as error:
            troubles.append(f"{record.run_id}: {error}")
            continue
        log.info("run recovered run=%s what=%s", record.run_id, what)
        done.append(f"{record.run_id}: {what}")
    try:
        settled, unsettled = settle_left(client, opened, spec=store, clock=clock)
    except SILENCE as error:
        settled, unsettled = [], [f"the states of segments could not be set from their logs: {error}"]
    return Looked(1, watch.found, (*done, *settled), (*troubles, *unsettled))


def look_at_all(
    stores: Iterable[StoreSpec],
    look: Callable[[SyncPrefectClient, StoreSpec], Looked],
    *,
    limit_seconds: float = _LIMIT_SECONDS,
) -> Looked:
    """Check stores in parallel. A store that exceeds the time limit is reported as a problem."""
    waiting: queue.SimpleQueue[StoreSpec] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[StoreSpec, Looked]] = queue.SimpleQueue()
    pending = {store.model_dump_json(): store for store in stores}
    for store in pending.values():
        waiting.put(store)
    for _ in range(min(_SIDE_BY_SIDE, len(pending))):
        # The threads are daemons, so that a store that never answers does not keep this process alive.
        worker = threading.Thread(target=copy_context().run, args=(_work, waiting, ended, look), daemon=True)
        worker.start()
    clock, found = SystemClock(), Looked()
    give_up_at = clock.monotonic() + limit_seconds
    while pending:
        try:
            store, looked = ended.get(timeout=max(give_up_at - clock.monotonic(), 0.0))
        except queue.Empty:
            late = tuple(f"{one.url}: it was not looked at within {limit_seconds:.0f} s" for one in pending.values())
            return found + Looked(troubles=late)
        del pending[store.model_dump_json()]
        found += looked
    return found


def _work(
    waiting: queue.SimpleQueue[StoreSpec],
    ended: queue.SimpleQueue[tuple[StoreSpec, Looked]],
    look: Callable[[SyncPrefectClient, StoreSpec], Looked],
) -> None:
    with get_client(sync_client=True) as client:
        while True:
            try:
                store = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                looked = look(client, store)
            except Exception as error:
                # Catch any exception, because a problem with one store must not stop the checks of the other stores.
                log.exception("check failed store=%s", store.url)
                looked = Looked(troubles=(f"{store.url}: {type(error).__name__}: {error}",))
            ended.put((store, looked))


def end_never_begun(client: SyncPrefectClient, *, now: datetime) -> Looked:
    """Set segue's flow runs that are Cancelling and have never run to Cancelled. Return a text about each flow run.

    Each flow run was cancelled after a worker had taken it, while its process was starting. The worker finds no process
    to end, the engine refuses to run the flow run, and Prefect leaves the state at Cancelling. `now` is the server's
    time. If a process of such a flow run begins later, the process reads the state Cancelled and ends.
    """
    done: list[str] = []
    try:
        for run in client.read_flow_runs(flow_run_filter=_NEVER_BEGUN, limit=_PAGE):
            if run.state is None or now - run.state.timestamp < _PATIENCE:
                continue
            client.set_flow_run_state(run.id, Cancelled(message=run.state.message), force=True)
            done.append(f"{run.name}: cancelled before its process began; its state is Cancelled now")
    except SILENCE as error:
        why = f"cancelled flow runs could not be read: {type(error).__name__}: {error}"
        return Looked(done=tuple(done), troubles=(why,))
    return Looked(done=tuple(done))
