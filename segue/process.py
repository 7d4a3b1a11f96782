"""Checks whether other processes still run, sets an environment variable that `ps` shows for this process, and makes
imports in threads safe beside forks."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SET_DEATH_SIGNAL = 1
"""The number of the option PR_SET_PDEATHSIG of prctl(2)."""
_STATE, _GROUP, _START_TICKS = 0, 2, 19
"""The positions of three fields of /proc/<pid>/stat, counted after the name in parentheses."""


FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""The environment variable that Prefect sets for the processes of a flow run, and that identifies them."""


_MOST_FORK_WAIT_SECONDS = 10.0
_importing, _held_for_fork = threading.RLock(), list[bool]()


@contextmanager
def safe_beside_forks() -> Iterator[None]:
    """A block that imports modules in a thread. While a thread is in this block, `os.fork` in another thread waits.

    If a process is forked while another thread imports a module, the module's lock is never released in the child. The
    child then hangs as soon as it imports this module, as workers of a DataLoader do. The wait ends after ten seconds.
    """
    with _importing:
        yield


def _before_fork() -> None:
    _held_for_fork.append(_importing.acquire(timeout=_MOST_FORK_WAIT_SECONDS))


def _after_fork() -> None:
    if _held_for_fork.pop():
        _importing.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def this_machine() -> str:
    """Return a name of this machine or container, in which a process id is valid.

    If the name is unknown, it is empty.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessRef:
    """One process on this machine. The reference distinguishes the process from a later process with the same id.

    A process that has ended but was not reaped (a zombie) is not alive. On a system without /proc, a zombie is reported
    as alive until it is reaped, and a reused process id is not recognised.
    """

    pid: int
    start_ticks: int | None = None
    """Start time of the process, in clock ticks since boot.

    If the system does not show the start time, the value is None.
    """

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return a reference to the process that has this id now."""
        fields = _stat(pid)
        return cls(pid, int(fields[_START_TICKS]) if fields else None)

    @classmethod
    def this(cls) -> Self:
        """Return a reference to the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference that `str` wrote on this machine. The text is not valid on other machines."""
        pid, _, start_ticks = text.partition(" ")
        return cls(int(pid), int(start_ticks) if start_ticks else None)

    def __str__(self) -> str:
        return str(self.pid) if self.start_ticks is None else f"{self.pid} {self.start_ticks}"

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        fields = _stat(self.pid)
        if not fields:
            return _takes_signals(self.pid)
        if fields[_STATE] in "ZX":
            return False
        return self.start_ticks is None or int(fields[_START_TICKS]) == self.start_ticks

    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has suspended the process."""
        fields = _stat(self.pid)
        return bool(fields) and fields[_STATE] in "Tt"


class Parent:
    """The process that started this process.

    This check never mistakes a zombie or a reused process id for the parent, because the system gives this process
    another parent as soon as the first parent ends.
    """

    def __init__(self, pid: int | None = None) -> None:
        """Without `pid`, watch the current parent, which is another process if the first parent has already ended."""
        self.pid = os.getppid() if pid is None else pid

    def is_alive(self) -> bool:
        """Whether the parent process still runs."""
        return os.getppid() == self.pid


def end_with(parent: Parent, *, poll_seconds: float) -> None:
    """Watch `parent` in a thread. When the parent has ended, end this process without clean-up.

    A pipe or socket cannot show the parent's end, because another forked process may hold the parent's side open.
    """

    def watch() -> None:
        pause = threading.Event()
        while parent.is_alive():
            pause.wait(poll_seconds)
        os._exit(0)

    threading.Thread(target=watch, name="segue-parent", daemon=True).start()


def go_on_without_parent() -> None:
    """When the parent process ends, let the system resume this process if it is suspended.

    The parent may have suspended this process, and after the parent's end nothing else would resume it. Only Linux
    supports this function.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


def has_members(group: int) -> bool:
    """Whether a process of this process group still runs.

    While a process of the group runs, the system does not reuse the group's number.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # The check above also counts processes that have ended but were not reaped.
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    members = [fields for fields in map(_stat, pids) if fields and int(fields[_GROUP]) == group]
    return not pids or any(fields[_STATE] not in "ZX" for fields in members)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name. If the file cannot be read, the result is empty."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # The name itself may contain anything, even parentheses.


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # The group exists, and belongs to another user.
    return True


def set_shown_variable(name: str, value: str) -> None:
    """Set an environment variable of this process, also in the environment that /proc and `ps` show.

    /proc and `ps` read the memory with which the process started. If the new value has a different length, /proc and
    `ps` do not show it.
    """
    if len(os.environ.get(name, "")) == len(value):
        getenv = ctypes.CDLL(None).getenv
        getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
        address = getenv(name.encode())
        if address:
            ctypes.memmove(address, value.encode(), len(value))
    os.environ[name] = value
