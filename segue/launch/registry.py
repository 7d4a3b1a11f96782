"""The choice of the place where a trainer is started. It is started on this machine, or by the launcher of the run
spec."""

from __future__ import annotations

from collections.abc import Callable

from segue.launch.assignment import Assignment
from segue.launch.launcher import StandbyTrainer, Trainer
from segue.launch.local import launch_here, launch_standby_here
from segue.launch.output import OnLine
from segue.launch.ray.ray_trainer import RayTrainer
from segue.launch.slurm.slurm_trainer import SlurmTrainer
from segue.spec import RunSpec


def _on_slurm(assignment: Assignment, on_line: OnLine | None) -> Trainer:
    return SlurmTrainer(assignment, on_line=on_line)


def _on_ray(assignment: Assignment, on_line: OnLine | None) -> Trainer:
    return RayTrainer(assignment, on_line=on_line)


LAUNCHERS: dict[str, Callable[[Assignment, OnLine | None], Trainer]] = {"slurm": _on_slurm, "ray": _on_ray}
"""Launchers for other machines, by the name of their table in the run spec."""


def launch_standby(spec: RunSpec, *, on_line: OnLine | None = None) -> StandbyTrainer:
    """Start a standby's trainer on this machine, before it has an assignment. Launchers for other machines have no
    standbys."""
    assert not spec.trains_elsewhere, "the policy plans no standby for a run that trains elsewhere"
    return launch_standby_here(spec, on_line=on_line)


def launch(assignment: Assignment, *, on_line: OnLine | None = None) -> Trainer:
    """Start the trainer for an assignment. `on_line` is called with each line of the trainer's output."""
    for table, start in LAUNCHERS.items():
        if getattr(assignment.spec, table) is not None:
            return start(assignment, on_line)
    return launch_here(assignment, on_line=on_line)
