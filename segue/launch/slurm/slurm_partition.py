"""A partition as `scontrol show partition` shows it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Partition:
    """The limits on the jobs of a partition."""

    name: str
    nodes: int
    most_nodes: int | None
    """Most nodes of one job; None: no limit."""
    longest_minutes: int | None
    """Longest time limit of a job; None: no limit."""
    has_default_time: bool = False
    """Whether a job that does not ask for a time limit gets a shorter one than the longest."""
    grace_seconds: int = 0
    """How long a preempted job may continue; KillWait, a setting of the cluster, is added to it."""
    preemption: str = ""
    """What becomes of preempted jobs: `CANCEL`, `REQUEUE`, `SUSPEND`, or `OFF`, if none are preempted."""


def partition_shown(text: str) -> Partition | None:
    """The partition in this output; None if there is none that can be read."""
    words = dict(re.findall(r"(\w+)=(\S*)", text))
    if not words.get("PartitionName") or not words.get("TotalNodes", "").isdigit():
        return None
    most = words.get("MaxNodes", "")
    return Partition(
        name=words["PartitionName"],
        nodes=int(words["TotalNodes"]),
        most_nodes=int(most) if most.isdigit() else None,
        longest_minutes=minutes_of(words.get("MaxTime", "")),
        has_default_time=minutes_of(words.get("DefaultTime", "")) is not None,
        grace_seconds=int(words["GraceTime"]) if words.get("GraceTime", "").isdigit() else 0,
        preemption=words.get("PreemptMode", ""),
    )


def priority_kill_wait(text: str) -> int | None:
    """KillWait, the seconds from SIGTERM to SIGKILL, in `scontrol show config`.

    None if partitions do not decide on preemptions: with `preempt/qos`, GraceTime is a setting of the QOS.
    """
    if re.search(r"^PreemptType\s*=\s*preempt/partition_prio", text, re.MULTILINE) is None:
        return None
    found = re.search(r"^KillWait\s*=\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def minutes_of(text: str) -> int | None:
    """Minutes of a time as Slurm writes it (`1-02:30:00`, `01:00:00`, `30:00`); None for `UNLIMITED`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + minutes
