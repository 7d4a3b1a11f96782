"""Ending a parent from another thread: its next sleep raises. A parent that is a process of its own gets a signal."""

from __future__ import annotations

import threading
from enum import StrEnum

from segue.clock import SystemClock


class Why(StrEnum):
    """Why a parent that shares its process is ended."""

    CANCELLED = "its flow run was cancelled"
    LEAVING = "the process that serves it ends"


class EndedError(BaseException):
    """A parent was asked to end.

    A BaseException, like the exception of a signal: code that continues after an error must not continue after this.
    """

    def __init__(self, why: Why) -> None:
        self.why = why
        super().__init__(why.value)


class Ending:
    """The request to end a parent; given once, from any thread. The first reason counts."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._lock = threading.Lock()
        self.why: Why | None = None

    def request(self, why: Why) -> None:
        """Ask the parent to end. Returns at once."""
        with self._lock:
            self.why = self.why or why
        self._given.set()

    def wait(self, seconds: float) -> None:
        """Block for `seconds`, or until the request.

        Raises:
            EndedError: the parent was asked to end.
        """
        if self._given.wait(seconds) and self.why is not None:
            raise EndedError(self.why)


class EndableClock(SystemClock):
    """The machine's clocks; a sleep ends with an `EndedError` once the parent is asked to end."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def sleep(self, seconds: float) -> None:
        self._ending.wait(seconds)
