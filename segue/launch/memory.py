"""Memory of a process tree: whether the kernel killed one of its processes for memory, and the limit it ran under.

The kernel counts these kills for each control group (cgroup), and for the whole machine in /proc/vmstat.
Source: the kernel's documentation of cgroup v2 (`memory.events`, `memory.max`) and of v1 (`memory.oom_control`).
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_GIB = 2**30
_RECENT_SECONDS = 5.0
_UNLIMITED_BYTES = 2**60
"""If there is no limit, cgroup v1 gives a number near 2^63."""
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For versions 2 and 1: the files of limit and use, and the line of memory.stat with pages that can be taken back."""


@dataclass(frozen=True)
class MemoryKills:
    """The kills for memory up to now, in this process's control group and on this machine."""

    group: int | None
    """None if there is no control group."""
    machine: int | None
    trainer: int | None = None
    """The kills in the control group of the trainer, if that is another group."""

    @classmethod
    def now(cls, trainer_groups: Sequence[Path] = ()) -> Self:
        """Read the counters."""
        return cls(
            group=_kills_in([chain[0] for chain in _groups()]),
            machine=_count(Path("/proc/vmstat"), "oom_kill"),
            trainer=_kills_in(trainer_groups),
        )

    def evidence(self, later: MemoryKills, *, was_killed: bool) -> str | None:
        """The evidence that a process here was killed for memory between the two; None if there is none.

        The kernel counts a kill in the control group of the process that it kills. So kills anywhere else on the
        machine count only if the trainer's group cannot be read, and only if the process in question `was_killed`
        by SIGKILL: a process that ended otherwise must not be blamed for another program's kill.
        """
        if _has_grown(self.group, later.group) or _has_grown(self.trainer, later.trainer):
            return "the kernel counted a kill for memory in its control group"
        is_trainer_known = self.trainer is not None and later.trainer is not None
        if was_killed and not is_trainer_known and _has_grown(self.machine, later.machine):
            where = "without a control group here" if self.group is None else "and none in the control group known here"
            counted = f"oom_kill in /proc/vmstat grew from {self.machine} to {later.machine}"
            return f"the kernel counted a kill for memory on this machine in those seconds ({counted}), {where}"
        return None


class RecentKills:
    """The kills for memory as of a few seconds ago: a kill long before an end is not its cause."""

    def __init__(self, trainer_pid: int | None = None) -> None:
        """`trainer_pid`: the process whose control group counts too; it may be moved to another one."""
        self._pid = trainer_pid
        self._groups: list[Path] = _own_groups(trainer_pid)
        self._older = self._newer = MemoryKills.now(self._groups)
        self._read_at = 0.0

    def look(self, at: float) -> None:
        """Read the counters again, at most every five seconds; `at` is a monotonic time."""
        if at - self._read_at < _RECENT_SECONDS:
            return
        # Read while the trainer lives: an ended process is in no group.
        moved = _own_groups(self._pid)
        if moved and moved != self._groups:
            self._groups = moved
            self._newer = MemoryKills.now(moved)  # The counters of two groups cannot be compared.
        self._older, self._newer, self._read_at = self._newer, MemoryKills.now(self._groups), at

    def evidence(self, *, was_killed: bool) -> str | None:
        """The evidence that a process was killed for memory since `before`; None if there is none."""
        return self.before.evidence(MemoryKills.now(self._groups), was_killed=was_killed)

    @property
    def before(self) -> MemoryKills:
        """The counters five to ten seconds ago."""
        return self._older


def limit_bytes() -> int | None:
    """The smallest memory limit of this process's control groups; None without one."""
    found = []
    for folder in (folder for chain in _groups() for folder in chain):
        for name, *_ in _LIMITS:
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < _UNLIMITED_BYTES:
                found.append(int(text))
    return min(found, default=None)


def free_bytes() -> float:
    """Memory that this process and others may still take, on this machine and in its container; inf if not known."""
    return min(_free_on_machine(), *(_left_in(folder) for chain in _groups() for folder in chain), math.inf)


def peak_bytes() -> int:
    """The largest resident memory of this process since it began, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.


def unreclaimable_bytes() -> int | None:
    """The memory of this process now that the kernel cannot take back: anonymous and shared pages, no mapped files."""
    counts = [_count(Path("/proc/self/status"), name) for name in ("RssAnon:", "RssShmem:")]
    known = [count for count in counts if count is not None]
    return sum(known) * 1024 if known else None


def in_words(peak: int | None, limit: int | None) -> str:
    """Peak and limit for a message; empty if neither is known."""
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
    """The memory that a control group leaves; its pages of files can be taken back, so they count as left."""
    for limit_name, used_name, cache in _LIMITS:
        limit, used = (_read(folder / name).strip() for name in (limit_name, used_name))
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
            return float(int(limit) - int(used) + (_count(folder / "memory.stat", cache) or 0))
    return math.inf


def _kills_in(groups: Iterable[Path]) -> int | None:
    # Groups above count the kills of all programs below them, so they are not read.
    counts = [_count(group / name, "oom_kill") for group in groups for name in ("memory.events", "memory.oom_control")]
    return max((count for count in counts if count is not None), default=None)


def _has_grown(before: int | None, later: int | None) -> bool:
    return before is not None and later is not None and later > before


def _own_groups(pid: int | None) -> list[Path]:
    return [] if pid is None else [chain[0] for chain in _groups(str(pid))]


def _groups(process: str = "self") -> list[list[Path]]:
    """A process's memory control group and those above it, in every mounted hierarchy."""
    found = []
    for line in _read(Path("/proc", process, "cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for root in _mounts(controllers):
            # In a container the path may be that of the host; its own group is then the root of the mount.
            inside = root / path.lstrip("/")
            start = inside if inside.is_dir() else root
            found.append([start, *(above for above in start.parents if above.is_relative_to(root))])
    return found


def _mounts(controllers: str) -> list[Path]:
    """The places where a hierarchy is mounted: of v1 by its controller, of v2 if `controllers` is empty."""
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
