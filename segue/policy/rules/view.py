"""What a policy sees and what it may wish for. Element by element: one number in a flow, arrays in a simulation."""

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
"""What is observed of spot while on on-demand: everything, what a sentinel reports, or nothing.

With nothing there is no way back to spot: on-demand is to the end.
"""


class Mode(IntEnum):
    """Where a run is, and where it wishes to be."""

    IDLE = 0
    """Nowhere: queueing on the spot pool, where it costs nothing."""
    SPOT = 1
    ON_DEMAND = 2


IDLE, SPOT, ON_DEMAND = (np.int8(mode) for mode in Mode)
"""The modes as elements of arrays. Looking one up in the class takes as long as an operation on a few hundred runs."""


@dataclass(frozen=True)
class Job:
    """What does not change while a run goes on. Times in seconds, prices in units of the spot price."""

    total_seconds: float
    """From the start to the deadline, R(0)."""
    work_seconds: float
    """Computing from the first step to the goal, C(0)."""
    changeover_seconds: float
    """From a start on either capacity to the first new step, d."""
    price_ratio: float = 3.0
    """On-demand price over spot price, k."""
    knowledge: Knowledge = "sentinel"
    handover: bool = True
    """Whether the way from on-demand to spot costs no progress: the standby boots while on-demand works."""
    lost_by_a_death_seconds: float = 0.0
    """Work that the end of a spot attempt undoes, on the mean."""
    decides_every_seconds: float = 0.0
    """How far apart the moments are at which it can change its mind; 0: it can at any."""

    @property
    def may_return(self) -> bool:
        """Whether there is a way from on-demand back to spot; without one on-demand is to the end."""
        return self.knowledge != "none"


@dataclass(frozen=True)
class Spells:
    """What a run has seen of spot: ends of spells, and how many the published hazards would have made expect."""

    up_ends: Floats
    up_expected: Floats
    down_ends: Floats
    down_expected: Floats

    @staticmethod
    def none(runs: int) -> Spells:
        return Spells(np.zeros(runs), np.zeros(runs), np.zeros(runs), np.zeros(runs))


@dataclass(frozen=True)
class View:
    """A run, or many, at one moment. Every field but `job` has one element for each run."""

    job: Job
    remaining_seconds: Floats
    """Until the deadline, R."""
    work_seconds: Floats
    """Computing still needed, C."""
    mode: Wishes
    is_up: Flags
    """Whether spot can be had, as far as is known."""
    spell_seconds: Floats
    """How long it has been so, as far as is known."""
    preemptions: Floats
    seen: Spells

    @property
    def slack_seconds(self) -> Floats:
        """R - C."""
        return self.remaining_seconds - self.work_seconds

    def only(self, these: Flags) -> View:
        """The view of some of the runs."""
        seen = Spells(*(getattr(self.seen, name)[these] for name in Spells.__dataclass_fields__))
        arrays = ("remaining_seconds", "work_seconds", "mode", "is_up", "spell_seconds", "preemptions")
        return View(job=self.job, seen=seen, **{name: getattr(self, name)[these] for name in arrays})
