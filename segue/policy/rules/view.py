"""A policy's knowledge of a run, and its choices. Arrays: one element in a run, many in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Wishes = NDArray[np.int8]
"""Values of `Mode`, one for each run."""

Knowledge = Literal["free", "sentinel", "none"]
"""What a run on on-demand observes of spot: everything, what a sentinel shows by starting, or nothing.

If nothing is observed, there is no way back to spot: once chosen, on-demand does the rest.
"""


class Mode(IntEnum):
    """The mode in which a run is, or is to be."""

    IDLE = 0
    """Waiting for spot capacity, which costs nothing."""
    SPOT = 1
    ON_DEMAND = 2


IDLE, SPOT, ON_DEMAND = (np.int8(mode) for mode in Mode)
"""The modes as elements of arrays. A look-up in the class takes as long as an operation on a few hundred runs."""


@dataclass(frozen=True)
class Job:
    """The facts that do not change during a run. Times in seconds, prices in units of the spot price."""

    total_seconds: float
    """Time from the start to the deadline, R(0)."""
    work_seconds: float
    """Time of computing from the first step to the goal, C(0)."""
    changeover_seconds: float
    """Time from a start on either capacity to the first new step, d."""
    price_ratio: float = 3.0
    """On-demand price over spot price, k."""
    knowledge: Knowledge = "sentinel"
    handover: bool = True
    """Whether on-demand keeps running while the spot machine boots, so that the move costs no progress."""
    has_start_margin: bool = False
    """Whether the clamp allows for starts that take longer than is known, as in a run; not so in the published work."""
    lost_by_a_death_seconds: float = 0.0
    """Work that the death of a spot attempt loses, on the mean."""
    decides_every_seconds: float = 0.0
    """Time between two moments at which the policy can choose again; 0: at any moment."""

    @property
    def may_return(self) -> bool:
        """Whether there is a way from on-demand back to spot; without one on-demand does the rest."""
        return self.knowledge != "none"


@dataclass(frozen=True)
class Intervals:
    """The availability intervals that a run observed: their ends, and how many the published hazards predict."""

    up_ends: Floats
    up_expected: Floats
    down_ends: Floats
    down_expected: Floats

    @staticmethod
    def none(runs: int) -> Intervals:
        return Intervals(np.zeros(runs), np.zeros(runs), np.zeros(runs), np.zeros(runs))


@dataclass(frozen=True)
class View:
    """A run, or many, at one moment. Every field but `job` has one element for each run."""

    job: Job
    remaining_seconds: Floats
    """Time until the deadline, R."""
    work_seconds: Floats
    """Time of computing still needed, C."""
    mode: Wishes
    is_up: Flags
    """Whether spot is available, as far as was observed."""
    age_seconds: Floats
    """How long the availability interval has lasted, as far as was observed."""
    preemptions: Floats
    observed: Intervals

    @property
    def slack_seconds(self) -> Floats:
        """R - C."""
        return self.remaining_seconds - self.work_seconds

    def only(self, these: Flags) -> View:
        """The view of some of the runs."""
        observed = Intervals(*(getattr(self.observed, name)[these] for name in Intervals.__dataclass_fields__))
        arrays = ("remaining_seconds", "work_seconds", "mode", "is_up", "age_seconds", "preemptions")
        return View(job=self.job, observed=observed, **{name: getattr(self, name)[these] for name in arrays})
