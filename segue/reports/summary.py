"""The summary of a run: state, step, whether it is on time, cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.policy.estimates import situation
from segue.records import Heartbeat
from segue.reports.cost import CostReport, cost_report
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration


@dataclass(frozen=True)
class RunSummary:
    """The summary of one run."""

    run: str
    state: str
    step: int
    steps: int | None
    late_seconds: float | None
    """Seconds by which the run is or will be late, negative when early; None without a deadline or a step time."""
    is_over: bool
    cost: CostReport | None

    @property
    def punctuality(self) -> str:
        """Late or early, and by how much; a dash when that is not known."""
        if self.late_seconds is None:
            return "-"
        if self.late_seconds > 0:
            return f"{'' if self.is_over else 'about '}{duration(self.late_seconds)} late"
        return f"{'' if self.is_over else 'about '}{duration(-self.late_seconds)} early"

    def row(self) -> dict[str, object]:
        """The summary as a row of a table."""
        cost = self.cost
        return {
            "run": self.run,
            "state": self.state,
            "step": f"{self.step} of {self.steps}" if self.steps else str(self.step),
            "deadline": self.punctuality,
            "cost": f"{cost.cost:.4g} {cost.currency}".strip() if cost is not None and cost.cost else "-",
        }


def summarize(run: str, history: History, *, now: datetime, beat: Heartbeat | None = None) -> RunSummary:
    """Summarize a run from its history and, while an attempt trains, its newest heartbeat."""
    spec = history.spec
    return RunSummary(
        run=run,
        state=state_of(history),
        step=max(history.committed_step, beat.step if beat is not None and not history.is_over else 0),
        steps=spec.steps if spec is not None else None,
        late_seconds=None if spec is None else _late_seconds(spec, history, now=now),
        is_over=history.is_over,
        cost=None if spec is None else cost_report(spec, history, live_seconds=live_seconds(beat, history)),
    )


def state_of(history: History) -> str:
    """The state of the run, in a few words."""
    if history.spec is not None and history.committed_step >= history.spec.steps:
        return "finished"
    plan = history.open_plan
    if plan is not None:
        doing = "importing weights" if history.is_import(plan.segment, plan.attempt) else f"on {plan.capacity}"
        stopping = ", stopping" if history.stop is not None else ""
        return f"segment {plan.segment} attempt {plan.attempt} {doing}{stopping}"
    last = history.decisions[-1] if history.decisions else None
    return last.action if last and history.is_over else "between segments"


def live_seconds(beat: Heartbeat | None, history: History) -> float:
    """Seconds for which the attempt that trains has had its machine, by its newest heartbeat."""
    attempt = history.attempt_named(beat.attempt_id) if beat is not None else None
    if beat is None or attempt is None:
        return 0.0
    return max((beat.beat_at - attempt.claim.written_at).total_seconds(), 0.0)


def _late_seconds(spec: RunSpec, history: History, *, now: datetime) -> float | None:
    if spec.deadline is None:
        return None
    last = history.decisions[-1] if history.decisions else None
    if last is not None and last.action == "finished":
        return (last.written_at - spec.deadline).total_seconds()
    here = situation(spec, history, now=now)
    if here.work_seconds is None:
        return None
    return (now + timedelta(seconds=here.work_seconds) - spec.deadline).total_seconds()
