"""Defines what the doctor checks: a store, this machine and possibly a run.

Checks share the results of earlier checks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from segue.clock import Clock, SystemClock
from segue.doctor.probe import Probed, probe
from segue.doctor.save_time import IN_ATTEMPTS
from segue.doctor.scratch import Scratch
from segue.errors import SegueError
from segue.notices.platform import find_platform
from segue.policy.estimates import save_seconds
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.spec import LivenessSpec, RunSpec, StoreSpec
from segue.stores import Store, open_store

NO_SPEC = "no run spec is given"
_PLATFORM_SECONDS = 2.0


class Rehearsed(NamedTuple):
    """The durations and the size of the state, as measured in the doctor's rehearsal."""

    save_seconds: float | None
    step_seconds: float
    state_bytes: int


@dataclass
class Subject:
    """The store, the machine and possibly the run that the doctor checks.

    The checks run one after the other, and a later check may use values that an earlier check set.
    """

    spec: RunSpec | None = None
    problem: SegueError | None = None
    """The error about an invalid run spec."""
    trains: bool = True
    """Whether the run spec names a recipe or a program."""
    store: StoreSpec = field(default_factory=StoreSpec)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    scratch: Scratch = field(default_factory=Scratch)
    rehearsed: Rehearsed | None = None
    """The measurements of the rehearsal. Before the rehearsal, the value is None."""
    pool_grace_seconds: float | None = None
    """The shortest grace period of the run's pools in seconds, which the checks of the pools set."""

    @property
    def why_no_spec(self) -> str:
        return NO_SPEC if self.problem is None else "the run spec is not valid"

    @property
    def liveness(self) -> LivenessSpec:
        return self.spec.liveness if self.spec is not None else LivenessSpec()

    @cached_property
    def opened(self) -> Store:
        """The opened store. Opening sends no request to the store."""
        return open_store(self.store)

    @cached_property
    def history(self) -> History:
        """The history of the run. For a new run, or without a run, the history is empty."""
        return History() if self.spec is None else read_history(open_log(self.spec, clock=self.clock).reload())

    @cached_property
    def probed(self) -> Probed:
        """The answer of a child process that imports torch and the recipe."""
        recipe = self.spec.recipe if self.spec is not None and self.trains else None
        return probe(recipe, environ=self.environ, scratch=self.scratch)

    @cached_property
    def platform(self) -> str | None:
        """The cloud whose metadata service answers on this machine.

        A run on this machine would watch the metadata service of this cloud.
        """
        found = find_platform(self.clock, environ=self.environ, limit_seconds=_PLATFORM_SECONDS)
        return found.name if found is not None else None

    def clear(self) -> None:
        """After an interruption, end the processes of the checks and remove the checks' objects from the store."""
        self.scratch.clear(self.opened if "opened" in vars(self) else None)  # A store that was not opened has nothing.

    @property
    def accelerators(self) -> int:
        """Number of accelerators that torch sees on this machine. If torch cannot be imported, the value is 0."""
        return self.probed.torch.accelerators if self.probed.torch is not None else 0

    @property
    def state_bytes(self) -> int | None:
        """Size of the run's state in bytes, from its newest checkpoint or from the rehearsal.

        If there is neither a checkpoint nor a rehearsal, the value is None.
        """
        if self.spec is not None and self.history.checkpoints:
            return self.history.checkpoints[-1].manifest.size_bytes
        return self.rehearsed.state_bytes if self.rehearsed is not None else None

    @property
    def save_seconds(self) -> tuple[float, str] | None:
        """Return the usual duration of a save in seconds, and the source of this measurement.

        The measurement comes from the run's attempts. If no attempt measured a save, the measurement comes from the
        rehearsal.
        """
        measured = save_seconds(self.history) if self.spec is not None else None
        if measured is not None:
            return measured, IN_ATTEMPTS
        rehearsed = self.rehearsed.save_seconds if self.rehearsed is not None else None
        return None if rehearsed is None else (rehearsed, "in the rehearsal")
