"""Orders to one actor: sent in order, and again if they were not heard. Imports Ray."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import ray

log = logging.getLogger(__name__)


class Orders:
    """Orders that an actor passes on to its ranks. An order may be heard twice, but never before an earlier one.

    Every order may come twice without harm, as notices do.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._left: deque[tuple[str, int]] = deque()
        self._asked: Any = None

    def give(self, what: str, number: int) -> None:
        """Send this order, at once unless an earlier one is on its way. Does not block."""
        if self._left and self._left[-1] == (what, number):
            return  # An order is on its way, or will be sent again.
        self._left.append((what, number))
        if self._asked is None:
            self._send()

    def look(self) -> None:
        """Repeat an order that was not heard, or send the next one. Does not block."""
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return
        try:
            ray.get(self._asked)
        except ray.exceptions.ActorUnavailableError:
            # The connection to it broke; whether it has heard is not known.
            log.warning("repeating an order that a Ray actor may have missed order=%s", self._left[0][0])
            self._send()
            return
        except ray.exceptions.RayError as error:
            log.warning("a Ray actor was not told what=%s reason=%s", self._left[0][0], type(error).__name__)
        self._left.popleft()
        self._asked = None
        if self._left:
            self._send()

    def _send(self) -> None:
        self._asked = self._actor.tell.remote(*self._left[0])
