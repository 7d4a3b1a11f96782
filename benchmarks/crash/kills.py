"""Kills from outside: of a trainer, of its writer process, of both, at a random moment or in the middle of a put."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.crash.forked_trainers import Child
from benchmarks.crash.places import Place
from benchmarks.crash.plan import OutsideKill, Victim
from benchmarks.crash.trainer import Note, read_notes

_POLL_SECONDS = 0.002
_TRAP_POLL_SECONDS = 0.0005
_PATIENCE_SECONDS = 60.0
"""Longest wait until an attempt trains, until a put is caught, or until a writer is replaced."""


class Striker:
    """Watches one attempt by its notes and its processes, and kills its target."""

    def __init__(self, child: Child, *, place: Place, run_id: str, notes: Path) -> None:
        self._child, self._place, self._run_id, self._notes = child, place, run_id, notes
        self._old_notes = len(read_notes(notes))
        self.problem: str | None = None
        """Problems after the kill."""

    def strike(self, kill: OutsideKill) -> bool:
        """Kill the target. Return False if the attempt ended before the kill. After the kill of a writer, wait until it
        is replaced."""
        if kill.at_work and not self._wait_until(self._is_at_work):
            return False
        if kill.victim.is_writer_alone and not self._wait_until(lambda: bool(self._child.writers())):
            return False
        commits = self._commits()
        is_hit = self._strike_during_put(kill) if kill.victim.is_during_put else self._strike_later(kill)
        if is_hit and kill.victim.is_writer_alone:
            self._see_it_replaced(commits)
        return is_hit

    def _strike_later(self, kill: OutsideKill) -> bool:
        time.sleep(kill.after_seconds)
        writers = self._child.writers()
        if self._child.poll() is not None or (kill.victim.is_writer_alone and not writers):
            return False
        if not kill.victim.is_writer_alone:
            self._child.kill()
        if kill.victim is not Victim.TRAINER:
            _kill_all(writers)
        return True

    def _strike_during_put(self, kill: OutsideKill) -> bool:
        writers = self._child.writers()
        attempt_id = next((note.attempt_id for note in self._own_notes() if note.kind == "claim"), None)
        if not writers or attempt_id is None:
            return False
        trap = self._place.trap(run_id=self._run_id, attempt_id=attempt_id, writer_pid=writers[0])
        has_caught = False
        try:
            has_caught = self._wait_until(trap.has_caught, poll_seconds=_TRAP_POLL_SECONDS)
            if has_caught and kill.victim.is_writer_alone:
                _kill_all(writers)
            elif has_caught:
                self._child.kill()
        finally:
            trap.release(is_late=kill.is_late or not has_caught)
        return has_caught

    def _see_it_replaced(self, commits: int) -> None:
        """Wait for a commit by the new writer, and then end the attempt as by a notice."""
        if not self._wait_until(lambda: self._commits() > commits) and self._child.poll() is None:
            self.problem = f"a writer was killed, and its attempt committed nothing for {_PATIENCE_SECONDS:g} s"
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGTERM)

    def _is_at_work(self) -> bool:
        return any(note.kind in ("verdict", "commit") for note in self._own_notes())

    def _commits(self) -> int:
        return sum(note.kind == "commit" for note in self._own_notes())

    def _own_notes(self) -> list[Note]:
        return read_notes(self._notes)[self._old_notes :]

    def _wait_until(self, is_so: Callable[[], bool], *, poll_seconds: float = _POLL_SECONDS) -> bool:
        """Return False if the attempt ended first, or if the time ran out."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            if self._child.poll() is not None or time.monotonic() > give_up_at:
                return False
            time.sleep(poll_seconds)
        return True


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
