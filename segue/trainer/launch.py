"""Launching the trainer: one small protocol, because ranks and nodes come behind it later."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Protocol

from segue.trainer.assignment import Assignment


class Trainer(Protocol):
    """A running trainer."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code (negative: the signal that killed it), None while it runs."""
        ...

    def give_notice(self) -> None:
        """Pass a termination notice on. Safe from a signal handler; harmless once it has ended."""
        ...

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Block until it ends, at most so long; the exit code, None when time ran out."""
        ...

    def kill(self) -> None:
        """End it without a word, as a vanishing machine would."""
        ...


class ProcessTrainer:
    """A plain child process in a session of its own, so that a signal to the parent's group is passed on once."""

    def __init__(self, assignment: Assignment, *, on_line: Callable[[str], None] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "segue.trainer.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if on_line else None,
            stderr=subprocess.STDOUT if on_line else None,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(assignment.model_dump_json().encode())
        self._process.stdin.close()
        self._reader: threading.Thread | None = None
        if on_line is not None and self._process.stdout is not None:
            self._reader = threading.Thread(target=_relay, args=(self._process.stdout, on_line), daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def give_notice(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._reader is not None:
            self._reader.join(timeout=5)
        return code

    def kill(self) -> None:
        self._process.kill()


def _relay(stream: IO[bytes], on_line: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            on_line(line.decode(errors="replace").rstrip())
