"""A key-value store that the ranks of an attempt share. torchrun hosts this store on the machine of rank 0."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from segue.trainer.ranks.collectives import connected

_ANSWER_SECONDS = 60.0


class SilentStoreError(dist.DistNetworkError):
    """The shared store does not answer. The machine of the store may be gone."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the key-value store of the ranks has not answered for {seconds:g} s")


class Exchange:
    """A connection to the shared store. Any thread may use the connection at any time.

    If the store is gone, calls raise a RuntimeError, even if the machine of the store has disappeared without a
    message. In this case torch's own timeout does not help, because it applies only to waits for a key. So a separate
    thread makes the calls, and is abandoned if the store does not answer.
    """

    def __init__(self, *, wait_seconds: float, answer_seconds: float = _ANSWER_SECONDS) -> None:
        """`wait_seconds` is the longest wait for the connection. `answer_seconds` is the longest wait for an answer."""
        # This connection is separate, because the connection of the process group is blocked while a thread waits for a
        # key.
        self._notes = connected(wait_seconds=wait_seconds)
        self._answer_seconds = answer_seconds
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._unanswered: _Call | None = None
        threading.Thread(target=self._make_calls, name="segue-exchange", daemon=True).start()

    def put(self, key: str, text: str) -> None:
        self._answer(lambda: self._notes.set(f"segue/{key}", text))

    def get(self, key: str) -> str | None:
        """The text of this key; None before a rank has put the text."""

        def ask() -> str | None:
            is_there = self._notes.check([f"segue/{key}"])
            return bytes(self._notes.get(f"segue/{key}")).decode() if is_there else None

        text: str | None = self._answer(ask)
        return text

    def count(self, key: str) -> int:
        """Add one to the counter of this key, and return the sum over all ranks."""
        return int(self._answer(lambda: self._notes.add(f"segue/{key}", 1)))

    def _answer(self, make: Callable[[], object]) -> Any:
        before = self._unanswered
        if before is not None and not before.is_made.is_set():
            raise SilentStoreError(self._answer_seconds)
        call = _Call(make)
        self._calls.put(call)
        if not call.is_made.wait(self._answer_seconds):
            self._unanswered = call
            raise SilentStoreError(self._answer_seconds)
        if call.error is not None:
            raise call.error
        return call.answer

    def _make_calls(self) -> None:
        while True:
            self._calls.get().run()


class _Call:
    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self.is_made = threading.Event()
        self.answer: object = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = self._make()
        except Exception as error:
            # Catch any exception, and raise it in the thread that asked for the call.
            self.error = error
        self.is_made.set()
