"""Runs the loop of a parent: decide, run an attempt, judge its resume, until a decision ends the run.

The Prefect flow `train` and a run on one machine (`local_run`) use this loop with their own `Steps`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from segue.policy.decide import Decision
from segue.records import SegmentPlan, SegmentReport, Verdict


class Steps(Protocol):
    """The steps of the loop. Each step may block, and writes its result to the run's log."""

    def decide(self) -> Decision: ...

    def run(self, plan: SegmentPlan) -> SegmentReport: ...

    def judge(self, report: SegmentReport) -> Verdict | None:
        """Return the verdict about the attempt's resume, or None if the attempt did not resume."""
        ...


class Ended(NamedTuple):
    """The decision that ended a run, and whether any attempt resumed."""

    decision: Decision
    has_resumed: bool


def drive(steps: Steps) -> Ended:
    """Run the loop until a decision ends the run.

    The loop keeps no state, so a restarted parent continues from the run's log.
    """
    has_resumed = False
    while True:
        decision = steps.decide()
        if decision.plan is None:
            return Ended(decision, has_resumed)
        report = steps.run(decision.plan)
        has_resumed |= steps.judge(report) is not None
