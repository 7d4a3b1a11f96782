"""The place where a trainer is started: on this machine, or by a launcher that the run spec asks for."""

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
"""The launchers on other machines, by the table of the run spec that asks for each."""


def launch_standby(spec: RunSpec, *, on_line: OnLine | None = None) -> StandbyTrainer:
    """Start a run's trainer before there is an assignment for it. Only here: other machines have no standbys."""
    assert not spec.trains_elsewhere, "the policy plans no standby for a run that trains elsewhere"
    return launch_standby_here(spec, on_line=on_line)


def launch(assignment: Assignment, *, on_line: OnLine | None = None) -> Trainer:
    """Start the trainer of an assignment; `on_line` is called with each line that it writes."""
    for table, start in LAUNCHERS.items():
        if getattr(assignment.spec, table) is not None:
            return start(assignment, on_line)
    return launch_here(assignment, on_line=on_line)
