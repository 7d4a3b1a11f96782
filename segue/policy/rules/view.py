"""Defines the knowledge of a policy about a run, and the choices of the policy.

The arrays have one element in a run, and an element for each simulated run in a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Wishes = NDArray[np.int8]
"""Values of `Mode`, one value for each run."""

Knowledge = Literal["free", "sentinel", "none"]
"""What a run on on-demand observes of spot: everything (`free`), the start of a sentinel (`sentinel`), or nothing.

With `none`, a run cannot return to spot. If the run has chosen on-demand, on-demand does the rest of the work.
"""


class Mode(IntEnum):
    """The current or the next mode of a run."""

    IDLE = 0
    """The run waits for spot capacity, which costs nothing."""
    SPOT = 1
    ON_DEMAND = 2


IDLE, SPOT, ON_DEMAND = (np.int8(mode) for mode in Mode)
"""The modes as elements of arrays.

The constants save time, because a look-up in the class takes as long as an operation on a few hundred runs.
"""


@dataclass(frozen=True)
class Job:
    """The constants of a run. Times are in seconds, and prices are in units of the spot price."""

    total_seconds: float
    """Seconds from the start to the deadline, R(0)."""
    work_seconds: float
    """Seconds of training from the first step to the goal, C(0)."""
    changeover_seconds: float
    """Seconds from a start on either capacity to the first new step, d."""
    price_ratio: float = 3.0
    """Price of on-demand divided by the price of spot, k."""
    knowledge: Knowledge = "sentinel"
    handover: bool = True
    """Whether on-demand keeps running while the spot machine boots, so that the move costs no progress."""
    has_start_margin: bool = False
    """Whether the clamp expects longer starts than the known starts, as in a real run.

    The published policies do not expect longer starts.
    """
    lost_by_a_death_seconds: float = 0.0
    """Mean seconds of work that the death of a spot attempt loses."""
    decides_every_seconds: float = 0.0
    """Seconds between two moments at which the policy can choose again.

    If the value is 0, the policy can choose at any moment.
    """

    @property
    def may_return(self) -> bool:
        """Whether a run can return from on-demand to spot.

        If a run cannot return to spot, on-demand does the rest of the work.
        """
        return self.knowledge != "none"


@dataclass(frozen=True)
class Intervals:
    """Numbers of observed and of expected ends of availability intervals.

    The published hazards give the number of expected ends.
    """

    up_ends: Floats
    up_expected: Floats
    down_ends: Floats
    down_expected: Floats

    @staticmethod
    def none(runs: int) -> Intervals:
        return Intervals(np.zeros(runs), np.zeros(runs), np.zeros(runs), np.zeros(runs))


@dataclass(frozen=True)
class View:
    """One or many runs at one moment. Every field except `job` has one element for each run."""

    job: Job
    remaining_seconds: Floats
    """Seconds until the deadline, R."""
    work_seconds: Floats
    """Seconds of training that the run still needs, C."""
    mode: Wishes
    is_up: Flags
    """Whether spot is available, according to the run's observations."""
    age_seconds: Floats
    """Seconds for which the current availability interval has lasted, according to the run's observations."""
    preemptions: Floats
    observed: Intervals

    @property
    def slack_seconds(self) -> Floats:
        """The remaining seconds minus the seconds of work, R - C."""
        return self.remaining_seconds - self.work_seconds

    def only(self, these: Flags) -> View:
        """Return the view of some of the runs."""
        observed = Intervals(*(getattr(self.observed, name)[these] for name in Intervals.__dataclass_fields__))
        arrays = ("remaining_seconds", "work_seconds", "mode", "is_up", "age_seconds", "preemptions")
        return View(job=self.job, observed=observed, **{name: getattr(self, name)[these] for name in arrays})
