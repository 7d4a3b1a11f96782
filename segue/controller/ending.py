"""Ends a parent from another thread by an exception in the parent's next sleep.

A parent with its own process gets a signal instead.
"""

from __future__ import annotations

import threading
from enum import StrEnum

from segue.clock import SystemClock


class Why(StrEnum):
    """The reason for ending a parent that shares its process with other parents."""

    CANCELLED = "its flow run was cancelled"
    LEAVING = "the process that serves it ends"


class EndedError(BaseException):
    """The exception that ends a parent on request.

    An `EndedError` is a BaseException, so that code that handles ordinary errors does not catch it.
    """

    def __init__(self, why: Why) -> None:
        self.why = why
        super().__init__(why.value)


class Ending:
    """The request to end a parent, from any thread. The reason of the first request applies."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._lock = threading.Lock()
        self.why: Why | None = None

    def request(self, why: Why) -> None:
        """Ask the parent to end. The method returns at once."""
        with self._lock:
            self.why = self.why or why
        self._given.set()

    def wait(self, seconds: float) -> None:
        """Block for `seconds`, or until a thread requests the end of the parent.

        Raises:
            EndedError: the parent was asked to end.
        """
        if self._given.wait(seconds) and self.why is not None:
            raise EndedError(self.why)


class EndableClock(SystemClock):
    """The machine's clocks, with a sleep that raises an `EndedError` if a thread requests the end of the parent."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def sleep(self, seconds: float) -> None:
        self._ending.wait(seconds)
