"""Estimates how long attempts wait for slots of pools that several runs share. The module is pure.

It is not known in advance when other runs free their slots of a pool with a concurrency limit. The module estimates the
wait from the number of flow runs that wait before this flow run, and from the time for which the newest flow runs held
a slot.

Several runs with similar deadlines that wait for spot would all request on-demand at the same late moment, and would
then wait for each other. If spot cannot serve the last run in the queue of spot in time, this run therefore leaves the
queue first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from segue.units import later

NUMBER = "on_demand_queue_seconds"
"""In the numbers of a decision, the name of the estimate for the on-demand queue."""
SPOT_NUMBER = "spot_queue_seconds"
"""In the numbers of a decision, the name of the estimate for the spot queue."""
_MOST_IDLE = 2.0
"""Upper limit of the measured time between two starts, as a multiple of the time for which a flow run holds a slot.

This limit leaves out outages of the workers, and waits because of another limit.
"""


@dataclass(frozen=True)
class Slots:
    """The slots of a pool at one moment."""

    limit: int | None
    """Number of flow runs that may run at the same time. The value None means no limit."""
    taken: int
    waiting: int
    """Number of due flow runs without a slot that get a slot before this flow run."""
    held_seconds: Sequence[float]
    """Seconds for which the newest flow runs held a slot, including the flow runs that still hold a slot."""
    start_every_seconds: float = 0.0
    """Mean number of seconds between two starts of the newest flow runs that had to wait.

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
    """The time at which spot has a slot for this run. The value is None if spot has a free slot or no limit."""
    slots_ratio: float = 0.0
    """Ratio of spot slots to on-demand slots. The value is 0 if spot or on-demand has no limit."""

    @classmethod
    def of(cls, *, spot: Slots, on_demand: Slots, now: datetime) -> Queues:
        """Return the queues that follow from the given slots."""
        wait = queue_seconds(spot)
        return cls(
            on_demand_seconds=queue_seconds(on_demand),
            spot_free_at=later(now, wait) if wait else None,
            slots_ratio=(spot.limit or 0) / on_demand.limit if on_demand.limit else 0.0,
        )

    def spot_seconds(self, now: datetime) -> float:
        """Return the seconds for which the run waits from now on for a slot of spot. Return 0 if the run has a slot."""
        return 0.0 if self.spot_free_at is None else max((self.spot_free_at - now).total_seconds(), 0.0)

    @property
    def without_spot(self) -> Queues:
        """Return the queues for a run that already has its slot of spot."""
        return replace(self, spot_free_at=None)

    def crowd_seconds(self, *, until: datetime) -> float:
        """Return the seconds for which a run that gives up spot at `until` waits for on-demand.

        Return 0 if spot has a slot for this run by `until`. If an earlier run in the queue has its turn after `until`,
        spot also comes too late for that run. The function assumes that the late runs have similar deadlines and also
        give up spot at `until`. The late runs then hold slots of on-demand for as long as they would have held slots of
        spot. If the other runs have no deadline, this run therefore leaves spot earlier than necessary.
        """
        if self.spot_free_at is None:
            return 0.0
        return max((self.spot_free_at - until).total_seconds(), 0.0) * self.slots_ratio


def queue_seconds(slots: Slots) -> float:
    """Return the usual wait in seconds of a flow run behind other flow runs.

    Return 0 if a slot is free or the pool provides no measurements.
    """
    if slots.limit is None or slots.limit < 1 or not slots.held_seconds:
        return 0.0
    before = slots.taken + slots.waiting - slots.limit
    if before < 0:
        return 0.0
    # With L slots, a slot becomes free in each L-th part of the time for which a flow run holds a slot. Boots and idle
    # time are extra.
    turn = median(slots.held_seconds) / slots.limit
    return (before + 1) * min(max(turn, slots.start_every_seconds), _MOST_IDLE * turn)
