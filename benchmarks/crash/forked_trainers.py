"""Trainers that start in milliseconds: forked from a process that has imported torch and never trains itself."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from benchmarks.common.child import child_environment

_START = "from benchmarks.crash.forked_trainers import serve; serve()"
_COSTLY = ("torch._dynamo", "segue.stores.s3")
"""Modules that are imported once, before the first fork, because an import in each trainer would take seconds."""
_POLL_SECONDS = 0.002
_START_SECONDS = 120.0
_GRACE_SECONDS = 10.0


class ForkServerError(Exception):
    """The fork server, from which trainers are forked, has ended."""


class Child:
    """One trainer and the processes that it started, in a separate session."""

    def __init__(self, pid: int, answers: IO[bytes]) -> None:
        self.pid, self._answers = pid, answers
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: the signal that killed the trainer); None while the trainer runs.

        Raises:
            ForkServerError: the fork server has ended, so the exit code is lost.
        """
        if self._code is None and select.select([self._answers], [], [], 0)[0]:
            self._code = int(_line_of(self._answers))
        return self._code

    def writers(self) -> list[int]:
        """Process ids of the writer processes in the trainer's session."""
        return [pid for pid in members_of(self.pid) if pid != self.pid and _is_writer(pid)]

    def kill(self) -> None:
        """Send SIGKILL only to the trainer."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_seconds: float) -> int | None:
        """Block until the trainer has ended. Return None if the time ran out first."""
        give_up_at = time.monotonic() + limit_seconds
        while (code := self.poll()) is None and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)
        return code

    def left_behind(self, limit_seconds: float) -> list[int]:
        """Processes of the trainer that are alive this many seconds after its end. The call returns as soon as all have
        ended."""
        give_up_at = time.monotonic() + limit_seconds
        while (left := members_of(self.pid)) and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)
        return left

    def end(self) -> None:
        """Send SIGKILL to the trainer and all its processes."""
        while left := members_of(self.pid):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        self.wait(_GRACE_SECONDS)


class ForkServer:
    """A handle on the process from which trainers are forked, one at a time. At the end of the `with` block, all its
    processes have ended."""

    def __init__(self, log: Path) -> None:
        """The output of each trainer overwrites the file `log`."""
        self.log = log
        self._child: Child | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(self.log)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                bufsize=0,
                # A session of its own: Ctrl-C goes to the benchmark's main process, which then ends this one in order.
                start_new_session=True,
                # Torch creates this folder when it is imported, and leaves it behind.
                env=child_environment(TORCHINDUCTOR_CACHE_DIR=str(self.log.parent / "inductor")),
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ForkServerError):
            if self._child is not None:
                self._child.end()
        # The end of its input makes it end a trainer that it has forked and not reported yet.
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def start(self, order: str) -> Child:
        """Fork a trainer for an order (`benchmarks.crash.trainer`); the one before must have ended.

        Raises:
            ForkServerError: the fork server has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except OSError:
            raise ForkServerError(self.last_output()) from None
        if not select.select([self._process.stdout], [], [], _START_SECONDS)[0]:
            raise ForkServerError("no trainer was started")
        try:
            self._child = Child(int(_line_of(self._process.stdout)), self._process.stdout)
        except ForkServerError:
            raise ForkServerError(self.last_output()) from None
        return self._child

    def last_output(self) -> str:
        """The last line of the newest trainer's output."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:400] if lines else "its output is empty"


def members_of(session_id: int) -> list[int]:
    """Process ids of the processes of a session that have not ended."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                # After the name in brackets, which may hold anything: state, parent, group, session.
                state, _, _, session = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # It ended while we looked.
            if int(session) == session_id and state not in "ZX":
                found.append(int(entry.name))
    return found


def serve() -> None:
    """The fork server: for each line of standard input fork a trainer, print its pid, and then its exit code."""
    from benchmarks.crash.trainer import train

    for name in _COSTLY:
        importlib.import_module(name)

    log = Path(sys.argv[1])
    while line := sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            _be_a_child(log)
            os._exit(train(json.loads(line)))
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % _code_of(pid))


def _code_of(pid: int) -> int:
    """Wait for a child, and return its exit code. If the benchmark's main process has ended, the child and this process
    end."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if select.select([0], [], [], _POLL_SECONDS)[0]:  # One order at a time: this is the end of the input.
            os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # It may have no group yet.
                os.killpg(pid, signal.SIGKILL)
            os._exit(1)


def _be_a_child(log: Path) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _line_of(answers: IO[bytes]) -> bytes:
    line = answers.readline()
    if not line:
        raise ForkServerError("the process that trainers are forked from has ended")
    return line


def _is_writer(pid: int) -> bool:
    try:
        return b"segue.checkpoints.saving.writer_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
