"""Records observations of pools by the runs of a store: intervals of availability, starts, prices and machines."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import Field

from segue.records.documents import Record, Value
from segue.records.machines import SeenMachine
from segue.units import Moment, Seconds


class SeenInterval(Value):
    """A time in which a spot pool provided capacity, or provided none, as one run observed it."""

    pool: str = Field(description="Deployment of the pool.")
    log_id: str = Field(description="Id of the log of the run that observed the interval.")
    is_up: bool
    begun_at: Moment
    seconds: Seconds
    has_ended: bool = Field(
        description="Whether the run observed the end of the interval: a preemption if capacity "
        "was up, or new capacity if it was down."
    )

    @property
    def ended_at(self) -> datetime:
        """The time at which the interval ended, or at which it was last observed."""
        return self.begun_at + timedelta(seconds=self.seconds)


class SeenStart(Value):
    """The time from a decision to the claim of its attempt, on a machine that was started for this attempt."""

    pool: str = Field(description="Deployment of the pool.")
    log_id: str = Field(description="Id of the log of the run.")
    decided_at: Moment
    seconds: Seconds


class SeenPrice(Value):
    """The newest price of a pool."""

    per_hour: float = Field(ge=0, allow_inf_nan=False)
    currency: str
    seen_at: Moment


class SeenPools(Record):
    """Observations of pools. Each pool keeps only its newest observations."""

    intervals: tuple[SeenInterval, ...] = ()
    starts: tuple[SeenStart, ...] = ()
    prices: dict[str, SeenPrice] = Field(default_factory=dict, description="By deployment.")
    machines: tuple[SeenMachine, ...] = Field(
        (),
        exclude_if=lambda machines: not machines,  # Older versions refuse a record with a field that they do not know.
        description="What each attempt showed of its machines.",
    )
