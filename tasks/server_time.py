"""The time by the Prefect server's clock, and the store's: the reference for starts and deadlines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from uuid import uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient
from segue.tasks.parent_clock import parent_clock, with_clock
from segue.tasks.prefect_api import SILENCE, quick_client

from segue.clock import Clock, SystemClock
from segue.controller.steady_clock import Reading, Reference, SteadyClock, steady
from segue.errors import SegueError
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import Examinable, Store

log = logging.getLogger(__name__)

_WHOLE_SECONDS = timedelta(seconds=0.5)
"""HTTP dates and the times of objects count whole seconds: half of one is the expected remainder."""
_UNCERTAINTY_SECONDS = 1.0


def server_time(client: SyncPrefectClient) -> Reading | None:
    """What the server's clock shows, by the date of its answer; None where it does not say."""
    try:
        return _dated(client.hello())
    except SILENCE as error:
        log.debug("the server's clock is not known reason=%s", type(error).__name__)
        return None


def time_at(client: SyncPrefectClient) -> datetime:
    """The server's time; this machine's where the server does not say."""
    reading = server_time(client)
    return reading.at if reading is not None else SystemClock().now()


def clock_of(client: SyncPrefectClient) -> Clock:
    """A clock for a short while that shows the server's time."""
    clock = SteadyClock(SystemClock(), reference=lambda: server_time(client))
    clock.look()
    return clock


@contextmanager
def run_time(store: StoreSpec) -> Iterator[None]:
    """A block in which the parent's clock shows the server's time, or without a server the store's."""
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
    """What the clock of a store shows, by the time of an object that is put there; None where it does not say."""
    if not isinstance(store, Examinable):
        return None
    key = f".segue-clock/{uuid4().hex}"
    try:
        store.put(key, b"x")
        at = store.modified_at(key)
        store.delete(key)
    except SegueError as error:
        log.debug("the store's clock is not known reason=%s", error)
        return None
    return Reading(at + _WHOLE_SECONDS, _UNCERTAINTY_SECONDS, "the store")


def _dated(response: httpx.Response) -> Reading | None:
    date = response.headers.get("date")
    try:
        at = parsedate_to_datetime(date) if date else None
    except ValueError:
        at = None
    return Reading(at + _WHOLE_SECONDS, _UNCERTAINTY_SECONDS, "the Prefect server") if at is not None else None
