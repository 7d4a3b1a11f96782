"""Records that a process overwrites regularly while the process is alive.

A reader ignores fields of a newer version, because a parent that sees no heartbeat declares the attempt lost.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from segue.records.documents import Record
from segue.records.evidence import WitnessRow
from segue.records.machines import SlowRank
from segue.units import Count, Moment, Seconds, SecondsAboveZero


class Heartbeat(Record):
    """The heartbeat of an attempt, which is overwritten in place. A change of `counter` shows that the attempt is
    alive.
    """

    model_config = ConfigDict(extra="ignore")

    attempt_id: str
    counter: Count
    phase: Literal["starting", "restoring", "training", "stopping"]
    step: Count
    loss: float | None = None
    step_seconds: Seconds | None = None
    last_commit_step: Count | None = None
    ends_in_seconds: Seconds | None = Field(
        None,
        description="Estimated seconds to the planned end of the segment, at the measured speed; None: no "
        "planned end, or not "
        "known.",
    )
    phase_seconds: dict[str, Seconds] = Field(
        default_factory=dict,
        exclude_if=lambda seconds: not seconds,
        description="Seconds since the claim by phase, as in the report of an attempt.",
    )
    trainer_pid: int
    cadence: str | None = Field(None, description="Current save interval and its reason.")
    saves_delayed: Count = Field(0, description="Number of saves that waited until the previous save was written.")
    trouble: str | None = Field(None, description="Reason why a save is being retried; None: no save failed.")
    peak_memory_bytes: Count | None = Field(None, description="Peak resident memory of the trainer so far, in bytes.")
    memory_bytes: Count | None = Field(
        None, description="Memory that the trainer uses now and that the kernel cannot reclaim, in bytes."
    )
    memory_limit_bytes: int | None = Field(
        None, gt=0, description="Memory limit of the trainer's control group in bytes; None: no limit."
    )
    slowness: float | None = Field(
        None,
        exclude_if=lambda slowness: slowness is None,
        description="Duration of the newest steps divided by the usual duration; None: the machine is not slow.",
    )
    slow_ranks: tuple[SlowRank, ...] = Field(
        (), exclude_if=lambda ranks: not ranks, description="Ranks that are slower than the other ranks now."
    )
    zone: str = Field("", exclude_if=lambda zone: not zone, description="Zone of the machine; empty: not known.")
    rows: tuple[WitnessRow, ...] = Field(
        (), description="Witness rows of the steps after saves without a seal; a resume after a kill uses these rows."
    )
    beat_at: Moment


class ParentRecord(Record):
    """The heartbeat of the parent of an open run, which is overwritten in place.

    A change of `counter` shows that the parent is alive.
    """

    model_config = ConfigDict(extra="ignore")

    run_id: str
    parent_id: str = Field(
        "", description="Id of this parent; empty: a start was requested, but no parent has started yet."
    )
    flow_run_id: str | None = None
    server_id: str = Field("", description="Id of the Prefect server of this parent; empty: not known.")
    host: str = ""
    machine: str = Field("", description="Machine of this parent, as returned by `segue.process.this_machine`.")
    process: str = Field(
        "", description="Process of this parent on the machine, in the format of `segue.process.ProcessRef`."
    )
    counter: int = Field(0, ge=0)
    has_left: bool = Field(False, description="Whether this parent ended before the run ended.")
    waiting: str | None = Field(
        None, description="Reason why an attempt is still waiting for a machine; None: no attempt is waiting."
    )
    unguarded: str | None = Field(
        None,
        description="Reason why recovery could not restart this parent after its "
        "death; None: recovery watches this parent.",
    )
    # Left out if it is not set: version 0.1 refuses a record with a field that it does not know.
    adopted_by: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Key of the heartbeat of a later slot, whose flow run runs this slot first; None: this slot has "
        "its own "
        "flow run.",
    )
    timeout_seconds: SecondsAboveZero = Field(
        description="Seconds without a new heartbeat after which the parent counts as dead."
    )
    beat_at: Moment
