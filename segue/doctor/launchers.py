"""Checks the cluster on which a run's trainers start, as Slurm jobs or as Ray actors."""

from __future__ import annotations

from collections.abc import Sequence

from segue.doctor.check import Item, Result, fail, joined, ok, skipped, warn
from segue.doctor.subject import Subject
from segue.launch.problem import Problem
from segue.launch.ray.ray_problems import ray_problems
from segue.launch.slurm.slurm_problems import slurm_problems

_LIMIT_SECONDS, _RAY_SECONDS = 120.0, 90.0
"""Time limits in seconds.

Each Slurm command waits nine seconds for an absent controller. Ray's client would wait for minutes.
"""


def items(subject: Subject) -> list[Item]:
    return [
        Item("slurm.jobs", lambda: slurm(subject), limit_seconds=_LIMIT_SECONDS),
        Item("ray.trainers", lambda: ray(subject), limit_seconds=_LIMIT_SECONDS),
    ]


def slurm(subject: Subject) -> Result:
    """Check what the run's Slurm jobs need: commands, folder, partitions, rights, nodes, time limits and options."""
    if subject.spec is None or subject.spec.slurm is None:
        return skipped(subject.why_no_spec if subject.spec is None else "the run spec has no [slurm] table")
    table = subject.spec.slurm
    return judged(
        slurm_problems(subject.spec), f"the partitions {table.spot} and {table.on_demand} take the run's jobs"
    )


def ray(subject: Subject, *, longest_seconds: float = _RAY_SECONDS) -> Result:
    """Check what the run's trainers need on Ray: the cluster, its resources, and Python and torch on its nodes."""
    if subject.spec is None or subject.spec.ray is None:
        return skipped(subject.why_no_spec if subject.spec is None else "the run spec has no [ray] table")
    return judged(
        ray_problems(subject.spec, longest_seconds=longest_seconds),
        "the Ray cluster can run the run's trainers, as far as the nodes that now run show",
    )


def judged(problems: Sequence[Problem], well: str) -> Result:
    if not problems:
        return ok(well)
    certain = [problem for problem in problems if problem.is_certain]
    shown, result = (certain, fail) if certain else (list(dict.fromkeys(problems)), warn)
    return result("; ".join(problem.what for problem in shown), fix=joined(problem.fix for problem in shown))
