"""Caches answers of the Prefect API: answers for one parent, and answers that all parents of a process share."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from segue.errors import OrchestratorError
from segue.prefect.api import is_refusal
from segue.prefect.messenger import Messenger

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Answers(Generic[_T]):
    """The newest answer for each subject. After a period, the query is repeated in the background.

    If the API refuses a query, or if the queried object does not exist, the previous answer is kept until the next
    query. If the API does not answer, the messenger repeats the query.
    """

    def __init__(self, messenger: Messenger, *, what: str, period_seconds: float, asks_at_once: bool = True) -> None:
        self._messenger, self._what, self._period_seconds = messenger, what, period_seconds
        self._asks_at_once = asks_at_once
        self._known: dict[Hashable, tuple[float, _T | None]] = {}

    def newest(self, about: Hashable, ask: Callable[[SyncPrefectClient], _T | None]) -> _T | None:
        """Return the newest answer. Return None before the first answer. If a query is due, start it in the
        background.
        """
        now = time.monotonic()
        at, known = self._known.setdefault(about, (-math.inf if self._asks_at_once else now, None))
        if now - at > self._period_seconds:
            self._known[about] = (math.inf, known)  # No further query until this one is answered.

            def note(client: SyncPrefectClient) -> None:
                self._known[about] = (time.monotonic(), self._answer(client, ask, known))

            self._messenger.deliver(note)
        return known

    def _answer(
        self, client: SyncPrefectClient, ask: Callable[[SyncPrefectClient], _T | None], known: _T | None
    ) -> _T | None:
        try:
            return ask(client)
        except (OrchestratorError, ObjectNotFound, httpx.HTTPStatusError, ValidationError) as error:
            # Answers are only shown or used in estimates, so an error must neither end the run nor stop the queries.
            if isinstance(error, httpx.HTTPStatusError) and not is_refusal(error):
                raise
            log.warning("prefect query failed, keeping the last answer what=%s reason=%s", self._what, error)
            return known


class SharedReadings(Generic[_T]):
    """The newest reading of each subject. For a period, all threads of this process reuse this reading.

    No thread waits for the reading of another thread. While another thread reads, a thread uses the previous reading.
    If there is no previous reading, the thread makes a reading itself. A failed reading is not kept.
    """

    def __init__(self, *, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._known: dict[Hashable, tuple[float, _T]] = {}
        self._reads: defaultdict[Hashable, Lock] = defaultdict(Lock)

    def newest(self, about: Hashable, read: Callable[[], _T]) -> _T:
        """Return a reading that is not older than the period. If another thread is reading now, return the previous
        reading.

        Raises:
            All exceptions of `read`.
        """
        known = self._known.get(about)
        if known is not None and time.monotonic() - known[0] < self._period_seconds:
            return known[1]
        lock = self._reads[about]
        is_mine = lock.acquire(blocking=False)
        if not is_mine and known is not None:
            return known[1]
        try:
            found = read()
            self._known[about] = (time.monotonic(), found)
            return found
        finally:
            if is_mine:
                lock.release()
