"""A key-value store that the ranks of an attempt share, and the counters by which each rank shows that it still runs.
torchrun hosts this store on the machine of rank 0."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from segue.checkpoints.saving.ranked_writer import Notes
from segue.process import ProcessRef, this_machine
from segue.trainer.ranks.collectives import connected

_ANSWER_SECONDS = 60.0


class SilentStoreError(dist.DistNetworkError):
    """The shared store does not answer. The machine of the store may be gone."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the key-value store of the ranks has not answered for {seconds:g} s")


class Exchange:
    """A connection to the shared store. Any thread may use the connection at any time.

    If the store is gone, calls raise a RuntimeError, even if the machine of the store has disappeared without a
    message. torch's own timeout does not detect a machine that has disappeared, because the timeout applies only to
    waits for a key. A separate thread therefore makes the calls. If the store does not answer, the thread is abandoned.
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

    def put_later(self, key: str, text: str) -> None:
        """Put the text, but do not wait for the store, and raise no error."""
        self._calls.put(_Call(lambda: self._notes.set(f"segue/{key}", text)))

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


_LOOKS_PER_READING = 20
"""Number of calls of `look` between two readings of the counters. A watchdog calls `look` twice a second. `look` reads
the counters of other machines only every ten seconds, because the watchdogs of many ranks share one store."""
SILENT_READINGS = 12
"""Number of readings without a change of the counter after which a machine counts as gone. The 12 readings take two
minutes. Segue counts readings and not seconds, because this process itself may have been suspended."""
_NOT_BEGUN = "0"
"""Counter value of a rank whose watchdog has not started."""


class Presence:
    """One rank's view of which ranks of the attempt still run."""

    def __init__(self, notes: Notes, *, rank: int, count: int) -> None:
        self._rank, self._count = rank, count
        self._machine = this_machine()
        self._beats = self._looks = 0
        self._processes: dict[int, tuple[ProcessRef, str]] = {}
        """Process and machine of each rank that has announced itself. The entries never change."""
        self._seen: dict[int, str] = {}
        self._unchanged: dict[int, int] = {}
        """Number of readings in which the counter of a rank has not changed."""
        self._silent_machines: set[str] = set()
        notes.put(f"process/{rank}", f"{ProcessRef.this()}\n{self._machine}")
        notes.put(f"beat/{rank}", _NOT_BEGUN)

    def beat(self, notes: Notes) -> None:
        """Increment this rank's counter, so that ranks on other machines see that it runs."""
        self._beats += 1
        notes.put(f"beat/{self._rank}", str(self._beats))

    def look(self, notes: Notes) -> None:
        """If a reading is due, read the counters of other machines. The watchdog calls this method twice a second."""
        if self._looks % _LOOKS_PER_READING == 0:
            for rank in self._representatives(notes):
                number = notes.get(f"beat/{rank}") or _NOT_BEGUN
                is_same = number == self._seen.get(rank) and number != _NOT_BEGUN
                self._unchanged[rank] = self._unchanged.get(rank, 0) + 1 if is_same else 0
                self._seen[rank] = number
            silent = (rank for rank, readings in self._unchanged.items() if readings >= SILENT_READINGS)
            self._silent_machines = {self._process(rank, notes)[1] for rank in silent}
        self._looks += 1

    def is_alive(self, rank: int, notes: Notes) -> bool:
        """Whether this rank is known or assumed to run. A rank that has not announced itself yet counts as running."""
        process, machine = self._process(rank, notes)
        if process is None or machine == self._machine:
            return process is None or process.is_alive()
        return machine not in self._silent_machines

    def counters(self, ranks: Sequence[int], notes: Notes) -> dict[int, str | None]:
        """Return the counters of the given ranks that are on other machines."""
        return {rank: notes.get(f"beat/{rank}") for rank in ranks if self._is_elsewhere(rank, notes)}

    def kill(self, rank: int, notes: Notes) -> bool:
        """If this rank runs on this machine, kill it. Return True if the rank was killed. Launchers end ranks on other
        machines."""
        process, machine = self._process(rank, notes)
        if process is None or machine != self._machine or not process.is_alive():
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        return True

    def _representatives(self, notes: Notes) -> list[int]:
        """Return the lowest rank on each other machine."""
        found: dict[str, int] = {}
        for rank in range(self._count):
            if self._is_elsewhere(rank, notes):
                found.setdefault(self._process(rank, notes)[1], rank)
        return list(found.values())

    def _is_elsewhere(self, rank: int, notes: Notes) -> bool:
        process, machine = self._process(rank, notes)
        return process is not None and machine != self._machine

    def _process(self, rank: int, notes: Notes) -> tuple[ProcessRef | None, str]:
        if rank not in self._processes:
            text = notes.get(f"process/{rank}")
            if text is None:
                return None, ""
            process, _, machine = text.partition("\n")
            self._processes[rank] = ProcessRef.parse(process), machine
        return self._processes[rank]
