"""The tables of a run spec that start its trainers on other machines than the segment's."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from segue.records import FiniteValue

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
_RESOURCE = r"^[A-Za-z][A-Za-z0-9_.:-]*$"
_OPTION = re.compile(r"--([a-z][a-z-]*)(=[^\n\0]*)?")
_SET_BY_SEGUE = {
    "partition": "set slurm.spot and slurm.on_demand",
    "nodes": "set slurm.nodes",
    "ntasks": "set ranks and slurm.nodes",
    "ntasks-per-node": "set ranks and slurm.nodes",
    "output": "set slurm.folder",
    "error": "set slurm.folder",
    "open-mode": "set slurm.folder",
    "signal": "set grace_seconds, or liveness.usr1_seconds",
    "time": "set segment.hours, so that segments end at a checkpoint",
    "job-name": "segue finds its jobs by their names",
    "comment": "segue names the attempt there",
    "requeue": "segue starts the next attempt itself",
    "no-requeue": "segue sets it",
    "array": "a run is one job at a time",
    "parsable": "segue sets it",
    "test-only": "segue uses it for its checks",
    "wait": "segue waits itself",
    "wrap": "segue writes the job's script",
    "input": "segue writes the job's script",
    "chdir": "jobs run in the working folder of the segment, which all nodes need",
    "clusters": "segue asks and signals the jobs of the default cluster",
    "time-min": "set segment.hours, so that segments end at a checkpoint",
    "hold": "a job that is held waits without end",
    "begin": "the run's schedule says when it starts",
    "dependency": "the run's schedule says when it starts",
    "deadline": "set the run's deadline",
    "no-kill": "an attempt ends when one of its nodes is lost",
    "version": "it submits nothing",
    "help": "it submits nothing",
    "usage": "it submits nothing",
}
"""The options of sbatch that cannot be given, and what to do instead."""


class SlurmSpec(FiniteValue):
    """Trainers as jobs of a Slurm cluster: the segment submits them, and watches them."""

    spot: str = Field(pattern=_NAME, description="Partition for spot: one whose jobs may be preempted.")
    on_demand: str = Field(pattern=_NAME, description="Partition for on-demand: one whose jobs are not preempted.")
    nodes: int = Field(
        1, ge=1, le=1024, description="Nodes of a job. `ranks` counts over all of them, and is a multiple of it."
    )
    options: tuple[str, ...] = Field(
        (), description='Further options of sbatch, e.g. ["--gres=gpu:1", "--account=vision"].'
    )
    folder: str = Field(
        ".segue/slurm",
        pattern=r"^[^\\\n]+$",
        description="Folder for the output of jobs, on a file system that all nodes and the segment's machine share.",
    )

    @field_validator("options")
    @classmethod
    def _are_free(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            why = _why_refused(option)
            if why is not None:
                raise PydanticCustomError("slurm_option", "{why}", {"why": why})
        return options


class RaySpec(FiniteValue):
    """Trainers on nodes of a Ray cluster: the segment asks for a placement group, and watches its actors."""

    address: str = Field(
        "auto",
        pattern=r"^(auto|[^/\s]+:\d+)$",
        description="Address of the cluster's head, as host:port; auto: the one cluster of which the segment's machine "
        "is a node. It must be a node in any case.",
    )
    spot: str = Field("spot", pattern=_RESOURCE, description="Custom resource of the nodes that are spot capacity.")
    on_demand: str = Field(
        "on_demand", pattern=_RESOURCE, description="Custom resource of the nodes that are on-demand capacity."
    )
    min_ranks: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Fewest ranks with which an attempt starts if there is no room for all; None: all. "
        "ranks = {min = 2, max = 8} sets it.",
    )
    ranks_per_bundle: int = Field(
        1,
        ge=1,
        le=1024,
        description="Ranks of one bundle of the placement group, which are on one node; `ranks` is a multiple of it.",
    )
    cpus_per_rank: int = Field(1, ge=1, description="CPUs of the cluster that a rank takes.")
    gpus_per_rank: int = Field(0, ge=0, description="GPUs of the cluster that a rank takes.")

    def why_unfit(self, ranks: int | None) -> str | None:
        """Why so many ranks cannot be placed; None if they can."""
        if ranks is None:
            return "ranks must be a number: a cluster has nodes of many kinds"
        least, each = self.min_ranks or ranks, self.ranks_per_bundle
        if ranks % each or least % each:
            return f"ranks_per_bundle is {each}; ranks, which is {ranks}, and min_ranks must be multiples of it"
        return f"min_ranks is {least}, and ranks only {ranks}" if least > ranks else None


def range_of_ranks(fields: dict[str, Any]) -> dict[str, Any]:
    """A run's fields with `ranks = {min, max}` as `ranks` and `ray.min_ranks`; a wrong range is left as it is."""
    ranks, ray = fields.get("ranks"), fields.get("ray")
    if not isinstance(ranks, dict) or ranks.keys() != {"min", "max"}:
        return fields
    if not isinstance(ray, dict) or "min_ranks" in ray:
        return fields
    return fields | {"ranks": ranks["max"], "ray": ray | {"min_ranks": ranks["min"]}}


def _why_refused(option: str) -> str | None:
    """Why this option of sbatch cannot be given; None if it can."""
    found = _OPTION.fullmatch(option)
    if found is None:
        return f"{option!r} is no long option of sbatch in one word; write it as --name or --name=value"
    # sbatch also takes shortened options.
    meant = found[1] if found[1] in _SET_BY_SEGUE else _lengthened(found[1])
    return None if meant is None else f"--{meant} cannot be given: {_SET_BY_SEGUE[meant]}"


def _lengthened(name: str) -> str | None:
    return next((option for option in _SET_BY_SEGUE if option.startswith(name)), None)
