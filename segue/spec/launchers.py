"""Defines the tables `slurm` and `ray` of a run spec, for trainers on other machines than the segment."""

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
    "comment": "segue writes the run and the attempt there",
    "requeue": "segue starts the next attempt itself",
    "no-requeue": "segue sets it",
    "array": "a run is one job at a time",
    "parsable": "segue sets it",
    "test-only": "segue uses it for its checks",
    "wait": "segue waits itself",
    "wrap": "segue writes the job's script",
    "input": "segue writes the job's script",
    "chdir": "jobs run in the working folder of the segment, which all nodes need",
    "clusters": "segue queries and signals only jobs of the default cluster",
    "time-min": "set segment.hours, so that segments end at a checkpoint",
    "hold": "a held job would wait forever",
    "begin": "the run's schedule says when it starts",
    "dependency": "the run's schedule says when it starts",
    "deadline": "set the run's deadline",
    "no-kill": "an attempt ends when one of its nodes is lost",
    "version": "it does not submit a job",
    "help": "it does not submit a job",
    "usage": "it does not submit a job",
}
"""Options of sbatch that the run spec may not contain. Each option has a reason or a replacement."""


class SlurmSpec(FiniteValue):
    """Trainers that run as jobs of a Slurm cluster. The segment submits and watches the jobs."""

    spot: str = Field(pattern=_NAME, description="Partition for spot capacity; its jobs may be preempted.")
    on_demand: str = Field(pattern=_NAME, description="Partition for on-demand capacity; its jobs are not preempted.")
    nodes: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of nodes of a job. `ranks` is the total over all nodes and must be a multiple of `nodes`.",
    )
    options: tuple[str, ...] = Field(
        (), description='Further options of sbatch, e.g. ["--gres=gpu:1", "--account=vision"].'
    )
    folder: str = Field(
        ".segue/slurm",
        pattern=r"^[^\\\n]+$",
        description="Folder for the output of jobs, on a file system shared by all nodes and the machine of the "
        "segment.",
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
    """Trainers that run as actors on a Ray cluster. The segment requests a placement group and watches the actors."""

    address: str = Field(
        "auto",
        pattern=r"^(auto|[^/\s]+:\d+)$",
        description="Address of the head node, as host:port; auto: the cluster to which the machine of the segment "
        "belongs. With either value, the machine of the segment must be a node of the cluster.",
    )
    spot: str = Field("spot", pattern=_RESOURCE, description="Ray custom resource of the spot nodes.")
    on_demand: str = Field("on_demand", pattern=_RESOURCE, description="Ray custom resource of the on-demand nodes.")
    min_ranks: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Smallest number of ranks with which an attempt may start; None: `ranks`. "
        "ranks = {min = 2, max = 8} sets min_ranks to 2.",
    )
    ranks_per_bundle: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of ranks in one bundle of the placement group, all on one node; `ranks` must be a "
        "multiple of this number.",
    )
    cpus_per_rank: int = Field(1, ge=1, description="Number of CPUs for each rank.")
    gpus_per_rank: int = Field(0, ge=0, description="Number of GPUs for each rank.")

    def why_unfit(self, ranks: int | None) -> str | None:
        """Return why this number of ranks cannot be placed. Return None if the ranks can be placed."""
        if ranks is None:
            return "ranks must be a number, because the nodes of a Ray cluster may have different accelerators"
        least, each = self.min_ranks or ranks, self.ranks_per_bundle
        if ranks % each or least % each:
            return (
                "ranks and min_ranks must be multiples of ranks_per_bundle; "
                f"ranks is {ranks}, and ranks_per_bundle is {each}"
            )
        return f"min_ranks is {least}, but ranks is only {ranks}" if least > ranks else None


def range_of_ranks(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace `ranks = {min, max}` with `ranks` and `ray.min_ranks`. An invalid range is returned unchanged."""
    ranks, ray = fields.get("ranks"), fields.get("ray")
    if not isinstance(ranks, dict) or ranks.keys() != {"min", "max"}:
        return fields
    if not isinstance(ray, dict) or "min_ranks" in ray:
        return fields
    return fields | {"ranks": ranks["max"], "ray": ray | {"min_ranks": ranks["min"]}}


def _why_refused(option: str) -> str | None:
    """Return why the run spec may not contain this option of sbatch. Return None if the run spec may contain it."""
    found = _OPTION.fullmatch(option)
    if found is None:
        return f"{option!r} is not a long option of sbatch; write each option as one string, --name or --name=value"
    # sbatch also accepts abbreviated options.
    meant = found[1] if found[1] in _SET_BY_SEGUE else _lengthened(found[1])
    return None if meant is None else f"--{meant} cannot be given: {_SET_BY_SEGUE[meant]}"


def _lengthened(name: str) -> str | None:
    return next((option for option in _SET_BY_SEGUE if option.startswith(name)), None)
