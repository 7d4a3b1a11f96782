"""What the demo measures before its main job, the deadline that follows from it, and why a main job was late. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from segue.policy.estimates import UNSEEN_START_FACTOR
from segue.runlog.history import Attempt, History

_MARGIN = 1.5
"""Factor by which a start in the main job may take longer than measured."""
_WORK_MARGIN = 1.35
"""Factor by which a step may take longer than measured."""
_SLACK_CHANGEOVERS = 2.5
"""Time to the deadline beyond the time that on-demand alone needs, in changeovers.

The kill and the notice use about one changeover, more on a machine that becomes busier; the wait for spot uses the
rest. The changeover is measured at the very first start, which takes longer than starts that find processes waiting.
"""
_DETECTION_SECONDS = 3.0
"""Time from a death, or from the last step, to the parent's next decision."""


@dataclass(frozen=True)
class Measured:
    """One undisturbed run through Prefect, in seconds."""

    to_decision: float
    """Time from the request for the run to its parent's first decision."""
    to_claim: float
    """Time from the decision to the claim of its attempt: worker, engine, trainer."""
    to_first_step: float
    """Time from the claim to the first new step."""
    step: float

    @property
    def changeover_seconds(self) -> float:
        """Time from a decision to the first new step, as the deadline counts it."""
        return _MARGIN * (self.to_claim + self.to_first_step)

    def policy(self) -> dict[str, float]:
        """The settings of the main job's policy."""
        return {
            "changeover_seconds": self.changeover_seconds,
            "detection_seconds": _DETECTION_SECONDS,
            "step_seconds": self.step,
            "margin_share": _WORK_MARGIN - 1,
        }

    def seconds_to_deadline(self, *, steps: int, save_every: int) -> float:
        """The time for the main job: on-demand alone, one lost attempt, and the slack that its events use up."""
        work = steps * self.step * _WORK_MARGIN
        starts = (1 + UNSEEN_START_FACTOR) * self.changeover_seconds  # Of spot and of on-demand, as the clamp counts.
        needed = work + starts + save_every * self.step + _DETECTION_SECONDS
        return _MARGIN * self.to_decision + needed + _SLACK_CHANGEOVERS * self.changeover_seconds


def measured(history: History, *, requested_at: datetime) -> Measured:
    """The figures of a run that has finished in one attempt."""
    decided, attempt, report = history.decisions[0], history.attempts[0], history.last_reports()[-1]
    return Measured(
        to_decision=max((decided.written_at - requested_at).total_seconds(), 0.0),
        to_claim=max((attempt.claim.written_at - decided.written_at).total_seconds(), 0.0),
        to_first_step=report.startup_seconds,
        step=report.train_seconds / report.train_steps,
    )


def why_late(history: History, before: Measured, *, logs: Path) -> str:
    """The parts that took longer than before and by how much, the longest first, with the earlier figures."""
    usual = before.to_claim + before.to_first_step
    measured_before = f"{usual:.0f} s from a decision to the first step were measured before"
    return "; ".join([*what_took_longer(history, before, logs=logs), measured_before])


def what_took_longer(history: History, before: Measured, *, logs: Path) -> tuple[str, ...]:
    """The waits and stretches of training that took longer than before, the longest first, and where to look."""
    usual = before.to_claim + before.to_first_step
    causes = []
    for attempt in history.attempts:
        seconds = _start_seconds(attempt, history)
        claim = attempt.claim
        if seconds is not None and seconds > usual:
            name = f"segment {claim.segment}, attempt {claim.attempt} ({claim.capacity.value})"
            log = logs / f"worker-{claim.capacity.value}.log"
            causes.append(
                (seconds - usual, f"{name} made its first step {seconds:.0f} s after its decision; see {log}")
            )
    trained = [attempt.report for attempt in history.attempts if attempt.report is not None]
    steps = sum(report.train_steps for report in trained)
    if steps:
        step = sum(report.train_seconds for report in trained) / steps
        what = f"a step took {step * 1e3:.1f} ms, and {before.step * 1e3:.1f} ms in the undisturbed run"
        causes.append((steps * (step - before.step), what))
    longest = [f"{what} ({seconds:.0f} s more)" for seconds, what in sorted(causes, reverse=True) if seconds > 1]
    return tuple(longest[:3])


def _start_seconds(attempt: Attempt, history: History) -> float | None:
    """Time from the decision to the first new step; None for an attempt that made no new step."""
    decided = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
    if decided is None or attempt.report is None or not attempt.report.train_steps:
        return None
    return (attempt.claim.written_at - decided.written_at).total_seconds() + attempt.report.startup_seconds
