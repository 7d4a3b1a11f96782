"""Starts a child process that trains, and handles its standard input, its output, and the processes that it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from segue.clock import SystemClock
from segue.launch.output import OnLine, Relay
from segue.process import has_members

_LEFTOVER_POLL_SECONDS = 0.05
_LEFTOVER_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL for processes that still run after the child has ended."""


class ChildProcess:
    """A child process in a separate session. A signal to the parent's process group therefore reaches the child only
    once.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        has_stdin: bool = False,
        has_output: bool,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE if has_output else None,
            stderr=subprocess.STDOUT if has_output else None,
            start_new_session=True,
            env=env,
        )
        self._relay: Relay | None = None

    def give(self, text: str) -> None:
        """Write `text` to the child's standard input, and close the input."""
        if self.process.stdin is None:
            return
        with suppress(BrokenPipeError):  # The exit code shows the end.
            self.process.stdin.write(text.encode())
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def relay_to(self, on_line: OnLine | None) -> None:
        """Call `on_line` with each line of the child's output. If `on_line` is None, the child uses this process's
        output.
        """
        if on_line is not None and self.process.stdout is not None:
            self._relay = Relay(self.process.stdout, on_line)

    def wait(self, timeout_seconds: float | None) -> int | None:
        try:
            code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        end_leftovers(self.process.pid)
        if self._relay is not None:
            self._relay.close()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def discard(self) -> None:
        """Kill a child that was not used."""
        self.kill()
        self.wait(None)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def end_leftovers(leader: int) -> None:
    """End all processes in the process group of an ended process, with SIGTERM and then with SIGKILL."""
    clock = SystemClock()
    with suppress(ProcessLookupError):
        if not has_members(leader):
            return
        os.killpg(leader, signal.SIGTERM)
        kill_at = clock.monotonic() + _LEFTOVER_SECONDS
        while has_members(leader) and clock.monotonic() < kill_at:
            clock.sleep(_LEFTOVER_POLL_SECONDS)
        os.killpg(leader, signal.SIGKILL)
        gone_at = clock.monotonic() + _LEFTOVER_SECONDS
        while has_members(leader) and clock.monotonic() < gone_at:  # A process that waits for a disk ends later.
            clock.sleep(_LEFTOVER_POLL_SECONDS)
