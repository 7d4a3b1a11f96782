"""The parent of a run: decide, run an attempt, judge its resume, until a decision ends the run.

The Prefect flow `train` and a run on this machine alone go through this one loop, each with steps of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from segue.policy.decide import Decision
from segue.records import SegmentPlan, SegmentReport, Verdict


class Steps(Protocol):
    """What a parent does at each turn. Each step may block, and leaves its result in the run's log."""

    def decide(self) -> Decision: ...

    def run(self, plan: SegmentPlan) -> SegmentReport: ...

    def judge(self, report: SegmentReport) -> Verdict | None:
        """The verdict about the attempt's resume; None when it did not resume."""
        ...


class Ended(NamedTuple):
    """How a run ended."""

    decision: Decision
    has_resumed: bool


def drive(steps: Steps) -> Ended:
    """Drive a run to the decision that ends it.

    A parent that is killed and started again goes on where the run's log is: nothing is kept here.
    """
    has_resumed = False
    while True:
        decision = steps.decide()
        if decision.plan is None:
            return Ended(decision, has_resumed)
        report = steps.run(decision.plan)
        has_resumed |= steps.judge(report) is not None
