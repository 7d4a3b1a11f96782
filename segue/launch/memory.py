"""Reads the memory limit of a process tree, and how often the kernel killed a process for lack of memory.

The kernel counts these kills for each control group (cgroup), and for the whole machine in /proc/vmstat. Source: the
kernel's documentation of cgroup v2 (`memory.events`, `memory.max`) and of v1 (`memory.oom_control`).
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

_GIB = 2**30
_RECENT_SECONDS = 5.0
_FLAGS, _EXITING = 6, 0x4
"""Index of `flags` after the name of the program in /proc/PID/stat, and the kernel's flag PF_EXITING."""
_UNLIMITED_BYTES = 2**60
"""Values above this number mean that there is no limit. Without a limit, cgroup v1 gives a number near 2^63."""
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For cgroup versions 2 and 1: the file of the limit, the file of the use, and the key of reclaimable pages in
memory.stat."""


@dataclass(frozen=True)
class MemoryKills:
    """Number of kills for lack of memory up to now, in this process's control group and on this machine."""

    group: int | None
    """Kills in this process's control group. The value is None if there is no control group."""
    machine: int | None
    trainer: int | None = None
    """Kills in the trainer's control group. The value is None if the trainer is in the group of this process."""

    @classmethod
    def now(cls, trainer_groups: Sequence[Path] = ()) -> Self:
        """Read the current counters."""
        return cls(
            group=_kills_in([chain[0] for chain in _groups()]),
            machine=_count(Path("/proc/vmstat"), "oom_kill"),
            trainer=_kills_in(trainer_groups),
        )

    def evidence(self, later: MemoryKills, *, was_killed: bool) -> str | None:
        """Return the evidence that the kernel killed a process for lack of memory between these counters and `later`.

        Return None if there is no evidence. If the kernel kills a process for lack of memory, the counter of the cgroup
        of this process rises. If the trainer's group cannot be read, kills elsewhere on the machine count too. Kills
        elsewhere count only if SIGKILL killed the process (`was_killed`). A process that ended in another way must not
        be linked to the kill of another program.
        """
        if _has_grown(self.group, later.group) or _has_grown(self.trainer, later.trainer):
            return "the kernel counted a kill for lack of memory in its control group"
        is_trainer_known = self.trainer is not None and later.trainer is not None
        if was_killed and not is_trainer_known and _has_grown(self.machine, later.machine):
            where = "and there is no control group" if self.group is None else "and none in the control group here"
            counted = f"oom_kill in /proc/vmstat grew from {self.machine} to {later.machine}"
            return f"the kernel counted a kill for lack of memory on this machine at that time ({counted}), {where}"
        return None


class RecentKills:
    """The number of kills for lack of memory a few seconds ago. Older kills are therefore not taken as the cause of an
    end.
    """

    def __init__(self, trainer_pid: int | None = None) -> None:
        """The object also counts kills in the control group of the process `trainer_pid`, which may move to another
        group.
        """
        self._pid = trainer_pid
        self._groups: list[Path] = _own_groups(trainer_pid)
        self._older = self._newer = MemoryKills.now(self._groups)
        self._read_at = 0.0

    def look(self, at: float) -> None:
        """Read the counters again, at most every five seconds. `at` is the monotonic time in seconds."""
        if at - self._read_at < _RECENT_SECONDS:
            return
        # The group must be read while the trainer runs: with cgroup v1, a process that ends is in the root group.
        moved = _own_groups(self._pid)
        if moved and moved != self._groups and not _is_ending(self._pid):
            self._groups = moved
            # The counters of two groups cannot be compared.
            self._newer = replace(self._newer, trainer=MemoryKills.now(moved).trainer)
        self._older, self._newer, self._read_at = self._newer, MemoryKills.now(self._groups), at

    def evidence(self, *, was_killed: bool) -> str | None:
        """Return the evidence that the kernel killed a process for lack of memory since `before`, or None."""
        return self.before.evidence(MemoryKills.now(self._groups), was_killed=was_killed)

    @property
    def before(self) -> MemoryKills:
        """The counters of five to ten seconds ago."""
        return self._older


def limit_bytes() -> int | None:
    """Return the smallest memory limit of this process's control groups in bytes. Return None if there is no limit."""
    found = []
    for folder in (folder for chain in _groups() for folder in chain):
        for name, *_ in _LIMITS:
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < _UNLIMITED_BYTES:
                found.append(int(text))
    return min(found, default=None)


def free_bytes() -> float:
    """Return the bytes that processes can still take on this machine and in its container. Infinite if unknown."""
    return min(_free_on_machine(), *(_left_in(folder) for chain in _groups() for folder in chain), math.inf)


def peak_bytes() -> int:
    """Return the largest resident memory of this process since its start, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.


def unreclaimable_bytes() -> int | None:
    """Return the memory of this process in bytes that the kernel cannot reclaim: anonymous and shared pages."""
    counts = [_count(Path("/proc/self/status"), name) for name in ("RssAnon:", "RssShmem:")]
    known = [count for count in counts if count is not None]
    return sum(known) * 1024 if known else None


def in_words(peak: int | None, limit: int | None) -> str:
    """Return the peak and the limit as text for a message. The text is empty if both are unknown."""
    parts = []
    if peak:
        parts.append(f"peak memory {peak / _GIB:.2f} GiB")
    if limit:
        parts.append(f"limit {limit / _GIB:.2f} GiB")
    return ", ".join(parts)


def _free_on_machine() -> float:
    kilobytes = _count(Path("/proc/meminfo"), "MemAvailable:")
    return math.inf if kilobytes is None else 1024.0 * kilobytes


def _left_in(folder: Path) -> float:
    """Return the free bytes of a control group. Cached file pages count as free, because the kernel can reclaim
    them.
    """
    for limit_name, used_name, cache in _LIMITS:
        limit, used = (_read(folder / name).strip() for name in (limit_name, used_name))
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
            return float(int(limit) - int(used) + (_count(folder / "memory.stat", cache) or 0))
    return math.inf


def _kills_in(groups: Iterable[Path]) -> int | None:
    # Parent groups are not read, because they count the kills of all programs below them.
    counts = [_count(group / name, "oom_kill") for group in groups for name in ("memory.events", "memory.oom_control")]
    return max((count for count in counts if count is not None), default=None)


def _has_grown(before: int | None, later: int | None) -> bool:
    return before is not None and later is not None and later > before


def _own_groups(pid: int | None) -> list[Path]:
    return [] if pid is None else [chain[0] for chain in _groups(str(pid))]


def _is_ending(pid: int | None) -> bool:
    """Whether the process ends or has ended. Source: the field `flags` in the manual page proc_pid_stat(5)."""
    fields = _read(Path("/proc", str(pid), "stat")).rpartition(")")[2].split()
    return len(fields) <= _FLAGS or bool(int(fields[_FLAGS]) & _EXITING)


def _groups(process: str = "self") -> list[list[Path]]:
    """Return the memory control group of a process and its parent groups, in every mounted hierarchy."""
    found = []
    for line in _read(Path("/proc", process, "cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for root in _mounts(controllers):
            # In a container, the path may be the path on the host. In this case, the root of the mount is the group of
            # this process.
            inside = root / path.lstrip("/")
            start = inside if inside.is_dir() else root
            found.append([start, *(above for above in start.parents if above.is_relative_to(root))])
    return found


def _mounts(controllers: str) -> list[Path]:
    """Return the mount points of the v1 hierarchy of a controller. An empty `controllers` means cgroup v2."""
    found = []
    for line in _read(Path("/proc/self/mounts")).splitlines():
        _, where, kind, options, *_ = line.split(" ")
        is_v1 = kind == "cgroup" and controllers in options.split(",")
        if is_v1 if controllers else kind == "cgroup2":
            found.append(Path(where))
    return found


def _count(path: Path, name: str) -> int | None:
    for line in _read(path).splitlines():
        key, *values = line.split()
        if key == name and values and values[0].isdigit():
            return int(values[0])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
