"""What a segment hands to its trainer process, and how the trainer's exit is read."""

from __future__ import annotations

from enum import IntEnum

from segue.records import Record, SegmentPlan, StopReason
from segue.spec import RunSpec


class Assignment(Record):
    """One attempt to make: which run, which plan, on whose behalf."""

    spec: RunSpec
    plan: SegmentPlan
    flow_run_id: str | None = None


class ExitCode(IntEnum):
    """How a trainer ended. The run's log holds the full report; this is for whoever waits on the process."""

    FINISHED = 0
    USAGE = 2
    BROKEN = 3
    BOUND = 10
    NOTICE = 11
    FAILED = 12
    FENCED = 13

    @classmethod
    def of(cls, reason: StopReason) -> ExitCode:
        return {
            StopReason.FINISHED: cls.FINISHED,
            StopReason.BOUND: cls.BOUND,
            StopReason.NOTICE: cls.NOTICE,
            StopReason.FENCED: cls.FENCED,
        }.get(reason, cls.FAILED)
