"""Defines the assignment that a segment gives to its trainer process, and the exit codes of the trainer."""

from __future__ import annotations

from enum import IntEnum

from segue.records import Record, SegmentPlan, StopReason
from segue.spec import RunSpec


class Assignment(Record):
    """The order for one attempt: the run spec, the plan, and the attempt's flow run."""

    spec: RunSpec
    plan: SegmentPlan
    flow_run_id: str | None = None


class ExitCode(IntEnum):
    """Exit code of a trainer, for the process that waits for the trainer. The run's log has the full report."""

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
