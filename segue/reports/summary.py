"""Makes the summary of a run: state, step, punctuality, cost. The module is pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.policy.estimates import situation, step_seconds
from segue.records import Capacity, Heartbeat, SegmentPlan
from segue.reports.cost_report import NOT_LIVE, CostReport, Live, cost_report
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration

_ENOUGH_STEPS, _ENOUGH_SECONDS = 5, 30.0
"""Number of steps and seconds of training after which the expected end uses the running attempt's own step time."""


@dataclass(frozen=True)
class RunSummary:
    """The summary of one run."""

    run: str
    state: str
    step: int
    steps: int | None
    late_seconds: float | None
    """Seconds from the deadline to the end or the expected end of the run.

    If the run is early, the value is negative. Without a deadline or a step time, the value is None.
    """
    finish_at: datetime | None
    """The time at which the run reached, or will probably reach, its goal. Without a step time, the value is None."""
    is_over: bool
    cost: CostReport | None

    @property
    def punctuality(self) -> str:
        """A text such as `late by 5min` or `on time by 1h`. If the punctuality is unknown, the text is a dash."""
        if self.late_seconds is None:
            return "-"
        by = f"{'' if self.is_over else 'about '}{duration(abs(self.late_seconds))}"
        return f"late by {by}" if self.late_seconds > 0 else f"on time by {by}"

    def row(self) -> dict[str, object]:
        """Return the summary as a row of a table."""
        cost = self.cost
        return {
            "run": self.run,
            "state": self.state,
            "step": f"{self.step} of {self.steps}" if self.steps else str(self.step),
            "deadline": self.punctuality,
            "cost": cost.paid if cost is not None and cost.cost else "-",
        }


def summarize(run: str, history: History, *, now: datetime, beat: Heartbeat | None = None) -> RunSummary:
    """Summarize a run from its history and, while an attempt trains, from the attempt's newest heartbeat."""
    spec = history.spec
    finish_at = None if spec is None else _finish_at(spec, history, now=now, beat=beat)
    deadline = spec.deadline if spec is not None else None
    return RunSummary(
        run=run,
        state=state_of(history),
        step=max(history.committed_step, beat.step if beat is not None and not history.is_over else 0),
        steps=spec.steps if spec is not None else None,
        late_seconds=(finish_at - deadline).total_seconds() if finish_at is not None and deadline is not None else None,
        finish_at=finish_at,
        is_over=history.is_over,
        cost=None if spec is None else cost_report(spec, history, live=live_of(beat, history)),
    )


def state_of(history: History) -> str:
    """Return the state of the run in a few words."""
    if history.spec is not None and history.is_finished(history.spec):
        return "finished"
    plan = history.open_plan
    if plan is not None:
        is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
        # A request on several pools has no pool of its own before a machine claims the attempt.
        place = pool_name(plan, plan.capacity) if is_claimed or not plan.pools else plan.capacity
        doing = "importing weights" if history.is_import(plan.segment, plan.attempt) else f"on {place}"
        stopping = ", stopping" if history.stop is not None else ""
        return f"segment {plan.segment} attempt {plan.attempt} {doing}{stopping}"
    last = history.decisions[-1] if history.decisions else None
    return last.action if last and history.is_over else "between segments"


def pool_name(plan: SegmentPlan | None, capacity: Capacity) -> str:
    """Return the short name of an attempt's pool. If the name does not contain the capacity, append the capacity."""
    if plan is None:
        return capacity.value
    name = plan.deployment.partition("/")[2]
    return name if capacity.value in name else f"{name} ({capacity})"


def live_of(beat: Heartbeat | None, history: History) -> Live:
    """Return the time and the steps of the attempt that trains now, from its newest heartbeat."""
    attempt = history.attempt_named(beat.attempt_id) if beat is not None else None
    if beat is None or attempt is None:
        return NOT_LIVE
    seconds = max((beat.beat_at - attempt.claim.written_at).total_seconds(), 0.0)
    parent = history.parent_of(attempt.claim.segment, attempt.claim.attempt)
    steps = beat.step - (parent.step if parent is not None else 0)
    return Live(seconds=seconds, step=beat.step, steps=max(steps, 0), step_seconds=beat.step_seconds)


def late_seconds_at_end(history: History) -> float | None:
    """Return the seconds by which a finished run was late.

    If the run was early, the value is negative. Without a deadline, or before the end, the value is None.
    """
    last = history.decisions[-1] if history.decisions else None
    deadline = history.spec.deadline if history.spec is not None else None
    if last is None or last.action != "finished" or deadline is None:
        return None
    return (last.written_at - deadline).total_seconds()


def _finish_at(spec: RunSpec, history: History, *, now: datetime, beat: Heartbeat | None) -> datetime | None:
    last = history.decisions[-1] if history.decisions else None
    if last is not None and last.action == "finished":
        return last.written_at
    here = situation(spec, history, now=now, slowest_step_seconds=own_step_seconds(spec, history, beat))
    if here.work_seconds is None:
        return None
    steps_left = spec.steps - history.committed_step
    is_training = beat is not None and beat.phase in ("training", "stopping")
    done = min(max(beat.step - history.committed_step, 0), steps_left) if beat is not None and is_training else 0
    seconds = here.work_seconds * (steps_left - done) / steps_left if steps_left else 0.0
    # If no attempt trains yet, the changeover delay is added.
    seconds += 0.0 if is_training or history.is_over else here.expected_changeover_seconds
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return None  # The goal is very far away, as for a script that trains until it decides to stop.


def own_step_seconds(spec: RunSpec, history: History, beat: Heartbeat | None) -> float:
    """Return the step time of the attempt that trains now.

    If the attempt has not trained long enough and another step time is known, return 0.
    """
    live = live_of(beat, history)
    if beat is None or beat.phase != "training" or live.step_seconds is None:
        return 0.0
    is_enough = live.steps > _ENOUGH_STEPS and live.steps * live.step_seconds > _ENOUGH_SECONDS
    return live.step_seconds if is_enough or step_seconds(spec, history) is None else 0.0
