"""Estimates how long attempts wait for slots of pools that several runs share. The module is pure.

Other runs also take slots of a pool with a concurrency limit, and nobody plans when the other runs end. The wait is
estimated from two facts that the pool shows: the number of flow runs that wait before this flow run, and the time for
which the newest flow runs held a slot.

If several runs with similar deadlines wait for spot, all of them would ask for on-demand at the same late moment, and
would then wait for each other on on-demand. Therefore, of the runs that spot will not reach in time, the last run in
the queue of spot leaves the queue first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from segue.units import later

NUMBER = "on_demand_queue_seconds"
"""Name that the estimate for the queue of on-demand has among the numbers of a decision."""
SPOT_NUMBER = "spot_queue_seconds"
"""Name of the estimate for the queue of spot. The attempt was the last in this queue."""
_MOST_IDLE = 2.0
"""The measured time between two starts counts only up to this multiple of the time for which a slot is held.

An outage of the workers, or a wait for another limit, does not belong to the time that a slot needs for one flow run.
"""


@dataclass(frozen=True)
class Slots:
    """The slots of a pool at one moment."""

    limit: int | None
    """Number of flow runs that may run at the same time. The value None means no limit."""
    taken: int
    waiting: int
    """Number of flow runs that are due, have no slot, and get a slot before this flow run."""
    held_seconds: Sequence[float]
    """Seconds for which the newest flow runs held a slot, including the flow runs that still hold a slot."""
    start_every_seconds: float = 0.0
    """Measured mean number of seconds between one start and the next, over the newest flow runs that had to wait.

    The value is 0 if too few flow runs had to wait.
    """

    @property
    def is_full(self) -> bool:
        """Whether one more flow run would have to wait."""
        return self.limit is not None and self.taken + self.waiting >= self.limit


UNLIMITED = Slots(None, taken=0, waiting=0, held_seconds=())


@dataclass(frozen=True)
class Queues:
    """The waits of a run for a slot of spot and for a slot of on-demand, at one moment."""

    on_demand_seconds: float = 0.0
    """The wait in seconds for a slot of on-demand, if the wait begins now."""
    spot_free_at: datetime | None = None
    """The time at which spot has a slot for this run. The value is None if spot has a slot now, or has no limit."""
    slots_ratio: float = 0.0
    """Ratio of spot slots to on-demand slots. The value is 0 if spot or on-demand has no limit."""

    @classmethod
    def of(cls, *, spot: Slots, on_demand: Slots, now: datetime) -> Queues:
        """Return the queues that follow from these slots."""
        wait = queue_seconds(spot)
        return cls(
            on_demand_seconds=queue_seconds(on_demand),
            spot_free_at=later(now, wait) if wait else None,
            slots_ratio=(spot.limit or 0) / on_demand.limit if on_demand.limit else 0.0,
        )

    def spot_seconds(self, now: datetime) -> float:
        """Return the wait in seconds for a slot of spot from now on. Return 0 if the run has a slot."""
        return 0.0 if self.spot_free_at is None else max((self.spot_free_at - now).total_seconds(), 0.0)

    @property
    def without_spot(self) -> Queues:
        """The queues for a run that already has its slot of spot."""
        return replace(self, spot_free_at=None)

    def crowd_seconds(self, *, until: datetime) -> float:
        """Return the seconds for which a run that gives up spot at `until` waits for on-demand.

        Return 0 if spot has a slot by then. Some runs before this run get their turn on spot between `until` and the
        turn of this run. Spot does not reach these runs in time either. If these runs have a deadline like the deadline
        of this run, they also give up spot at `until`. They then hold slots of on-demand for as long as they would have
        held slots of spot. The other runs are assumed to have similar deadlines. Behind runs without a deadline, a run
        therefore leaves spot earlier than necessary.
        """
        if self.spot_free_at is None:
            return 0.0
        return max((self.spot_free_at - until).total_seconds(), 0.0) * self.slots_ratio


def queue_seconds(slots: Slots) -> float:
    """Return the usual wait in seconds of a flow run behind other flow runs.

    Return 0 if a slot is free, or if nothing is known.
    """
    if slots.limit is None or slots.limit < 1 or not slots.held_seconds:
        return 0.0
    before = slots.taken + slots.waiting - slots.limit
    if before < 0:
        return 0.0
    # With L slots, one becomes free in each L-th part of the time for which a slot is held. Boots and idle time are
    # extra.
    turn = median(slots.held_seconds) / slots.limit
    return (before + 1) * min(max(turn, slots.start_every_seconds), _MOST_IDLE * turn)
