"""The detection of ranks that have ended. Ranks on this machine are checked by their processes, ranks on other machines
by the counters of their watchdogs.

A process id has no meaning on another machine or in another container. On another machine, one rank stands for all
ranks of the machine, because torchrun ends all ranks of a machine if one of them ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from segue.checkpoints.saving.ranked_writer import Notes
from segue.process import ProcessRef, this_machine

_LOOKS_PER_READING = 20
"""Number of calls of `look` between two readings of the counters. A watchdog calls `look` twice a second, but reads the
counters of other machines only every ten seconds, because the watchdogs of many ranks share one store."""
SILENT_READINGS = 12
"""Number of readings without a change of the counter after which a machine counts as gone. These readings take two
minutes. Segue counts readings and not seconds, because this process itself may have been suspended."""
_NOT_BEGUN = "0"
"""Counter value of a rank whose watchdog has not started."""


class Presence:
    """The facts that one rank has about which ranks of the attempt still run."""

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
