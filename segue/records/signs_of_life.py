"""What processes overwrite in place while they are alive."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from segue.records.documents import Record
from segue.records.evidence import WitnessRow
from segue.units import Count, Moment, Seconds, SecondsAboveZero


class Heartbeat(Record):
    """A sign of life, overwritten in place. A changing counter, not a timestamp, shows that the attempt is alive."""

    attempt_id: str
    counter: Count
    phase: Literal["starting", "restoring", "training", "stopping"]
    step: Count
    loss: float | None = None
    step_seconds: Seconds | None = None
    last_commit_step: Count | None = None
    ends_in_seconds: Seconds | None = Field(
        None, description="Seconds to the planned end of the segment at its pace; None: no such end, or not known."
    )
    trainer_pid: int
    cadence: str | None = Field(None, description="Current save interval and its reason.")
    saves_delayed: Count = Field(0, description="Saves that had to wait until the previous one was written.")
    trouble: str | None = Field(None, description="Reason why a save is being retried; None without a failure.")
    peak_memory_bytes: Count | None = Field(None, description="Largest resident memory of the trainer so far.")
    memory_bytes: Count | None = Field(None, description="Memory of the trainer now that cannot be reclaimed.")
    memory_limit_bytes: int | None = Field(None, gt=0, description="Memory limit of its control group; None: none.")
    rows: tuple[WitnessRow, ...] = Field(
        (), description="Rows after saves that are not sealed yet, for a resume after a kill."
    )
    beat_at: Moment


class ParentRecord(Record):
    """The parent of an open run, overwritten in place. A changing counter, not a timestamp, shows that it is alive."""

    run_id: str
    parent_id: str = Field("", description="Id of this parent; empty while a start was requested and none has begun.")
    flow_run_id: str | None = None
    server_id: str = Field("", description="What names its orchestrator's server; empty: not known.")
    host: str = ""
    machine: str = Field("", description="The machine, as `segue.process.this_machine` gives it.")
    process: str = Field("", description="The parent's process there, as `segue.process.ProcessRef` writes it.")
    counter: int = Field(0, ge=0)
    has_left: bool = Field(False, description="Whether this parent ended before the run did.")
    waiting: str | None = Field(None, description="What an attempt without a machine waits for; None: for nothing.")
    unguarded: str | None = Field(None, description="Why nothing would start this parent again; None: recovery looks.")
    # Left out if there is none: older versions refuse a record with a field that they do not know.
    adopted_by: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Heartbeat of the later slot whose flow run runs this slot first; None: the flow run is its own.",
    )
    timeout_seconds: SecondsAboveZero = Field(description="Without a new heartbeat for this long, the parent is dead.")
    beat_at: Moment
