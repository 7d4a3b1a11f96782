"""Provides the clock of the parent that runs the calling code. If the parent must end, a sleep on this clock ends at
once.

The clock shows the time of the Prefect server or of the store, which is the reference for starts and deadlines.

`segue serve` gives each of its parents a separate clock. If a parent runs in a container, it gets no signal when its
flow run is cancelled. To detect this, all parents outside `segue serve` poll the state of their own flow run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient

from segue.clock import Clock, SystemClock
from segue.controller.ending import EndableClock, Ending, Why
from segue.controller.steady_clock import Reading, Reference, SteadyClock, steady
from segue.errors import SegueError
from segue.prefect.api import SILENCE, quick_client
from segue.prefect.messenger import STATES
from segue.prefect.state_words import is_by_a_person
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import Examinable, Store
from segue.stores.retry import OUTAGE_SECONDS, patiently

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 1.0
_WHOLE_SECONDS = timedelta(seconds=0.5)
"""Mean rounding error of HTTP dates and of objects' times, which both have only whole seconds."""
_UNCERTAINTY_SECONDS = 1.0
_CLOCK: ContextVar[Clock | None] = ContextVar("segue_parent_clock", default=None)


def parent_clock() -> Clock:
    """Return the clock of this parent. Outside a parent, return the clock of the machine.

    The clock is in a context variable, because it cannot be a parameter. The server stores all parameters of a flow.
    """
    return _CLOCK.get() or SystemClock()


def as_parent(ask: Callable[[], T], *, what: str) -> T:
    """Call `ask` and return its result. While the store fails, retry on the parent's clock. Attempts continue to train.

    Raises:
        StoreReadError, StoreWriteError: the store still fails after 15 minutes. Recovery then starts the parent again.
    """
    return patiently(ask, what=what, patience_seconds=OUTAGE_SECONDS, clock=parent_clock())


@contextmanager
def with_clock(clock: Clock) -> Iterator[None]:
    """Make `parent_clock` return this clock inside the block, and in the flows and tasks that the block calls."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)


@contextmanager
def ending_with(flow_run_id: UUID | None) -> Iterator[None]:
    """Make the parent's sleeps in the block raise an `EndedError` as soon as a person cancels this flow run.

    In `segue serve`, the parent's own clock raises this error, so this function changes nothing.
    """
    known = parent_clock()
    known = known.base if isinstance(known, SteadyClock) else known
    if flow_run_id is None or isinstance(known, EndableClock):
        yield
        return
    ending, is_over = Ending(), threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            state = STATES.state(flow_run_id)
            if state is not None and is_by_a_person(state):
                ending.request(Why.CANCELLED)
                return

    STATES.watch(flow_run_id)
    threading.Thread(target=look, name="segue-own-state", daemon=True).start()
    try:
        with with_clock(EndableClock(ending)):
            yield
    finally:
        is_over.set()
        STATES.forget(flow_run_id)


def server_time(client: SyncPrefectClient) -> Reading | None:
    """Return the server's time, from the date of an answer. Return None if the answer has no date."""
    try:
        return _dated(client.hello())
    except SILENCE as error:
        log.debug("the server's clock could not be read reason=%s", type(error).__name__)
        return None


def time_at(client: SyncPrefectClient) -> datetime:
    """Return the server's time. Return this machine's time if the server's time is unknown."""
    reading = server_time(client)
    return reading.at if reading is not None else SystemClock().now()


def clock_of(client: SyncPrefectClient) -> Clock:
    """Return a clock that shows the server's time. Use this clock only for a short time."""
    clock = SteadyClock(SystemClock(), reference=lambda: server_time(client))
    clock.look()
    return clock


@contextmanager
def run_time(store: StoreSpec) -> Iterator[None]:
    """Make the parent's clock in the block show the server's time. Without a server, it shows the store's time."""
    base = parent_clock()
    if isinstance(base, SteadyClock):
        yield
        return
    with steady(base, reference=_reference(store)) as clock, with_clock(clock):
        yield


def _reference(spec: StoreSpec) -> Reference:
    def read() -> Reading | None:
        with quick_client() as client:
            found = server_time(client)
        return found or (store_time(open_store(spec)) if spec.is_remote else None)

    return read


def store_time(store: Store) -> Reading | None:
    """Return the store's time, from an object that this call writes. Return None if objects of the store have no
    times.
    """
    if not isinstance(store, Examinable):
        return None
    key = f".segue-check/clock-{uuid4().hex}"  # The objects of `segue doctor` have the same prefix.
    try:
        store.put(key, b"x")
        at = store.modified_at(key)
        store.delete([key])
    except SegueError as error:
        log.debug("the store's clock could not be read reason=%s", error)
        return None
    return Reading(at + _WHOLE_SECONDS, _UNCERTAINTY_SECONDS, "the store")


def _dated(response: httpx.Response) -> Reading | None:
    date = response.headers.get("date")
    try:
        at = parsedate_to_datetime(date) if date else None
    except ValueError:
        at = None
    return Reading(at + _WHOLE_SECONDS, _UNCERTAINTY_SECONDS, "the Prefect server") if at is not None else None
