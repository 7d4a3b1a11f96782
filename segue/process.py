"""Whether another process or process group still runs, and what `ps` shows of this process. Light to import."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_STATE, _GROUP, _START_TICKS = 0, 2, 19
"""Fields of /proc/<pid>/stat, counted after the name in parentheses."""


FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""The environment variable by which the processes of a flow run are found. Prefect sets it for its engine."""


def this_machine() -> str:
    """What distinguishes this machine's process ids from those of other machines and containers; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessRef:
    """One process on this machine. A later process with the same id is not mistaken for it.

    A process that has ended and was not reaped (a zombie) is not alive. Without /proc, such a process counts as alive
    until it is reaped, and a reused id is not recognised.
    """

    pid: int
    start_ticks: int | None = None
    """When it started, in clock ticks since boot; None if the system does not show that."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this id now."""
        fields = _stat(pid)
        return cls(pid, int(fields[_START_TICKS]) if fields else None)

    @classmethod
    def this(cls) -> Self:
        """The calling process."""
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, text: str) -> Self:
        """The reference from its text by `str`, in any process of this machine; it means nothing on another machine."""
        pid, _, start_ticks = text.partition(" ")
        return cls(int(pid), int(start_ticks) if start_ticks else None)

    def __str__(self) -> str:
        return str(self.pid) if self.start_ticks is None else f"{self.pid} {self.start_ticks}"

    def is_alive(self) -> bool:
        """Whether it still runs."""
        fields = _stat(self.pid)
        if not fields:
            return _takes_signals(self.pid)
        if fields[_STATE] in "ZX":
            return False
        return self.start_ticks is None or int(fields[_START_TICKS]) == self.start_ticks

    def is_stopped(self) -> bool:
        """Whether it is suspended, by a signal or a debugger."""
        fields = _stat(self.pid)
        return bool(fields) and fields[_STATE] in "Tt"


class Parent:
    """The process that started this one.

    The most reliable check there is: the system itself gives this process another parent when the first one ends, so
    neither a zombie nor a reused id is mistaken for it.
    """

    def __init__(self, pid: int | None = None) -> None:
        """`pid` is needed if the parent may have ended before this call: the parent then passes its own id."""
        self.pid = os.getppid() if pid is None else pid

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return os.getppid() == self.pid


def end_with(parent: Parent, *, poll_seconds: float) -> None:
    """Watch `parent` in a thread, and end this process without clean-up soon after it has ended.

    A pipe or socket to the parent does not show its end: another process that the parent forked may hold its end open.
    """

    def watch() -> None:
        pause = threading.Event()
        while parent.is_alive():
            pause.wait(poll_seconds)
        os._exit(0)

    threading.Thread(target=watch, name="segue-parent", daemon=True).start()


def go_on_without_parent() -> None:
    """Have the system continue this process, if it is suspended, when the process that started it ends.

    Otherwise the process that suspended it may be gone, and nobody would continue this one. Only Linux offers this.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


def has_members(group: int) -> bool:
    """Whether a process of this process group still runs.

    As long as one does, the group's number belongs to no other group and no other process.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A process that has ended and was not reaped still counts above.
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    members = [fields for fields in map(_stat, pids) if fields and int(fields[_GROUP]) == group]
    return not pids or any(fields[_STATE] not in "ZX" for fields in members)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat after the name; none if it cannot be read."""
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
    """Set an environment variable of this process, even if /proc and `ps` show it to others.

    They show the memory with which the process started: a value of another length is set, but not shown.
    """
    if len(os.environ.get(name, "")) == len(value):
        getenv = ctypes.CDLL(None).getenv
        getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
        address = getenv(name.encode())
        if address:
            ctypes.memmove(address, value.encode(), len(value))
    os.environ[name] = value
