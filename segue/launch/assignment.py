"""The assignment that a segment gives to its trainer process, and the meaning of the trainer's exit code."""

from __future__ import annotations

from enum import IntEnum

from segue.records import Record, SegmentPlan, StopReason
from segue.spec import RunSpec


class Assignment(Record):
    """One attempt to make: the run, the plan, and the flow run it belongs to."""

    spec: RunSpec
    plan: SegmentPlan
    flow_run_id: str | None = None


class ExitCode(IntEnum):
    """How a trainer ended, for the process that waits for it. The run's log holds the full report."""

    FINISHED = 0
    USAGE = 2
    BROKEN = 3
    BOUND = 10
    NOTICE = 11
    FAILED = 12
    FENCED = 13
    OUT_OF_MEMORY = 14
    HUNG = 15

    @classmethod
    def of(cls, reason: StopReason) -> ExitCode:
        return {
            StopReason.FINISHED: cls.FINISHED,
            StopReason.BOUND: cls.BOUND,
            StopReason.NOTICE: cls.NOTICE,
            StopReason.FENCED: cls.FENCED,
            StopReason.OUT_OF_MEMORY: cls.OUT_OF_MEMORY,
            StopReason.HUNG: cls.HUNG,
        }.get(reason, cls.FAILED)
