"""Questions to the Prefect API that are asked again from time to time, without ever waiting for the answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
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
    """The newest answers, by what they are about. Each is asked for again after a period, one question at a time.

    A question that the API refuses, or whose object does not exist, keeps its previous answer, and is asked again after
    the period. While the API is silent, the messenger repeats it.
    """

    def __init__(self, messenger: Messenger, *, what: str, period_seconds: float, asks_at_once: bool = True) -> None:
        self._messenger, self._what, self._period_seconds = messenger, what, period_seconds
        self._asks_at_once = asks_at_once
        self._known: dict[Hashable, tuple[float, _T | None]] = {}

    def newest(self, about: Hashable, ask: Callable[[SyncPrefectClient], _T | None]) -> _T | None:
        """The newest answer, None before the first one; asks again in the background if it is due."""
        now = time.monotonic()
        at, known = self._known.setdefault(about, (-math.inf if self._asks_at_once else now, None))
        if now - at > self._period_seconds:
            self._known[about] = (math.inf, known)  # Until the answer is there.

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
            # Only shown or estimated: such an answer must neither end the run nor be the last one.
            if isinstance(error, httpx.HTTPStatusError) and not is_refusal(error):
                raise
            log.warning("%s is not known reason=%s", self._what, error)
            return known
