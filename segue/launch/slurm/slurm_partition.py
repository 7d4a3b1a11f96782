"""Parses a Slurm partition from the output of `scontrol show partition`. All functions are pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Partition:
    """The limits of a partition on its jobs."""

    name: str
    nodes: int
    most_nodes: int | None
    """Largest number of nodes for one job. The value is None if there is no limit."""
    longest_minutes: int | None
    """Longest permitted time limit of a job in minutes. The value is None if there is no limit."""
    has_default_time: bool = False
    """Whether a job without a time limit gets less than the longest permitted time."""
    grace_seconds: int = 0
    """Seconds for which a preempted job may continue. The cluster's setting KillWait is added to these seconds."""
    preemption: str = ""
    """Slurm's treatment of preempted jobs: `CANCEL`, `REQUEUE`, `SUSPEND`, or `OFF` if jobs are not preempted."""


def partition_shown(text: str) -> Partition | None:
    """Parse the partition in this output. Return None if the partition cannot be parsed."""
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
    """Read KillWait, the seconds from SIGTERM to SIGKILL, from the output of `scontrol show config`.

    Return None if preemptions do not depend on partitions. With `preempt/qos`, for example, GraceTime is a setting of
    the QOS.
    """
    if re.search(r"^PreemptType\s*=\s*preempt/partition_prio", text, re.MULTILINE) is None:
        return None
    found = re.search(r"^KillWait\s*=\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def minutes_of(text: str) -> int | None:
    """Parse a time in Slurm's format (`1-02:30:00`, `01:00:00`, `30:00`) into minutes. Return None for `UNLIMITED`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + minutes
