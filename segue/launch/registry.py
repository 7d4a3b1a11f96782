"""Starts each trainer in the right place: on this machine, or with the launcher of the run spec."""

from __future__ import annotations

from segue.launch.assignment import Assignment
from segue.launch.launcher import StandbyTrainer, Trainer
from segue.launch.local import launch_here, launch_standby_here
from segue.launch.output import OnLine
from segue.launch.ray.ray_problems import has_ray, require_ray
from segue.launch.ray.ray_trainer import RayTrainer
from segue.launch.slurm.slurm_problems import has_slurm, require_slurm
from segue.launch.slurm.slurm_trainer import SlurmTrainer
from segue.spec import RunSpec

LAUNCHERS: dict[str, type[SlurmTrainer | RayTrainer]] = {"slurm": SlurmTrainer, "ray": RayTrainer}
"""Launchers for other machines, by the name of their table in the run spec."""


def require_clusters(spec: RunSpec) -> None:
    """Refuse a run whose trainers cannot run on its cluster. A cluster that this machine cannot reach is not checked.

    Raises:
        SlurmSetupError, RaySetupError: there are problems. The message has each problem and its fix.
    """
    if has_slurm():
        require_slurm(spec)
    if has_ray():
        require_ray(spec)


def launch_standby(spec: RunSpec, *, on_line: OnLine | None = None) -> StandbyTrainer:
    """Start a standby's trainer on this machine, before it has an assignment. Other launchers have no standbys."""
    assert not spec.trains_elsewhere, "the policy plans no standby for a run that trains elsewhere"
    return launch_standby_here(spec, on_line=on_line)


def launch(assignment: Assignment, *, on_line: OnLine | None = None) -> Trainer:
    """Start the trainer for an assignment. The launcher calls `on_line` with each line of the trainer's output."""
    for table, start in LAUNCHERS.items():
        if getattr(assignment.spec, table) is not None:
            return start(assignment, on_line=on_line)
    return launch_here(assignment, on_line=on_line)
