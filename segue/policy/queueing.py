"""The waits of attempts for slots of pools that runs share. Pure.

The slots of a pool with a concurrency limit are taken by other runs too, whose ends nobody plans. The wait is estimated
from what the pool shows: how many flow runs wait before this one, and how long the newest ones held a slot.

Runs with similar deadlines that wait for spot would all ask for on-demand at the same late moment, and then wait
for each other there. So of the runs that spot will not reach in time, the last in its queue leaves it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from segue.units import later

NUMBER = "on_demand_queue_seconds"
"""Name of the estimate among the numbers of a decision."""
SPOT_NUMBER = "spot_queue_seconds"
"""The name of the estimate for spot's queue, in which the attempt was the last."""
_MOST_IDLE = 2.0
"""The measured time between starts counts up to this multiple of the time for which a slot is held.

An outage of the workers, or a wait for another limit, is no part of a slot's turn.
"""


@dataclass(frozen=True)
class Slots:
    """The slots of a pool at one moment."""

    limit: int | None
    """Flow runs that may run at once; None without a limit."""
    taken: int
    waiting: int
    """Flow runs that are due, have no slot, and get one before this one."""
    held_seconds: Sequence[float]
    """How long the newest flow runs held a slot, those that still hold one included."""
    start_every_seconds: float = 0.0
    """Mean time between the newest starts of flow runs that waited, as measured; 0 if too few did."""

    @property
    def is_full(self) -> bool:
        """Whether a further flow run would wait."""
        return self.limit is not None and self.taken + self.waiting >= self.limit


UNLIMITED = Slots(None, taken=0, waiting=0, held_seconds=())


@dataclass(frozen=True)
class Queues:
    """The waits of a run for a slot of either capacity, at one moment."""

    on_demand_seconds: float = 0.0
    """The wait for a slot of on-demand that begins now."""
    spot_free_at: datetime | None = None
    """When spot has a slot for this run; None if it has one, or has no limit."""
    slots_ratio: float = 0.0
    """Slots of spot for each slot of on-demand; 0 if one of them has no limit."""

    @classmethod
    def of(cls, *, spot: Slots, on_demand: Slots, now: datetime) -> Queues:
        """The queues that these slots make."""
        wait = queue_seconds(spot)
        return cls(
            on_demand_seconds=queue_seconds(on_demand),
            spot_free_at=later(now, wait) if wait else None,
            slots_ratio=(spot.limit or 0) / on_demand.limit if on_demand.limit else 0.0,
        )

    def spot_seconds(self, now: datetime) -> float:
        """The wait for a slot of spot from now on; 0 if the run has a slot."""
        return 0.0 if self.spot_free_at is None else max((self.spot_free_at - now).total_seconds(), 0.0)

    @property
    def without_spot(self) -> Queues:
        """The queues for a run that has its slot of spot."""
        return replace(self, spot_free_at=None)

    def crowd_seconds(self, *, until: datetime) -> float:
        """How long a run that gives up spot at `until` waits for on-demand; 0 if spot has a slot by then.

        The runs before it whose turn on spot comes between `until` and its own are not reached in time either. With
        deadlines like its own they also give up spot then, and have slots of on-demand for as long as they would have
        had those of spot. The others are assumed to have similar deadlines: behind runs without one, a run leaves spot
        earlier than necessary.
        """
        if self.spot_free_at is None:
            return 0.0
        return max((self.spot_free_at - until).total_seconds(), 0.0) * self.slots_ratio


def queue_seconds(slots: Slots) -> float:
    """The usual wait of a flow run behind the others; 0 if a slot is free, or nothing is known."""
    if slots.limit is None or slots.limit < 1 or not slots.held_seconds:
        return 0.0
    before = slots.taken + slots.waiting - slots.limit
    if before < 0:
        return 0.0
    # With L slots, one becomes free in each L-th part of the time for which a slot is held. Boots and idle time are
    # extra.
    turn = median(slots.held_seconds) / slots.limit
    return (before + 1) * min(max(turn, slots.start_every_seconds), _MOST_IDLE * turn)
