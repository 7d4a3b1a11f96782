"""Computes the metrics of a run from its view. The module is pure.

Names follow OpenTelemetry. In Prometheus, underscores replace the dots, and a suffix names the unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from segue.policy.clamp import seconds_to_recall
from segue.policy.estimates import Situation, situation, step_seconds
from segue.records import Capacity, VerdictKind
from segue.reports.page import RunView
from segue.reports.preemptions import Preemption, preemptions
from segue.reports.run_facts import state_name
from segue.reports.summary import RunSummary, own_step_seconds

RUN_LABELS = ("run", "store")
"""The labels of every metric."""
_SUFFIXES = {"": "", "s": "_seconds", "1": "_ratio"}
_ANSWERS = {True: "answered", False: "missed"}

Values = Mapping[tuple[str, ...], float]
"""The values of a metric, by the values of its labels."""


class MeasuredRun:
    """A run at one moment, with the numbers that several metrics use."""

    def __init__(self, view: RunView) -> None:
        self.view, self.history, self.spec = view, view.history, view.spec

    @cached_property
    def summary(self) -> RunSummary:
        return self.view.summary

    @cached_property
    def now(self) -> Situation:
        slowest = own_step_seconds(self.spec, self.history, self.view.beat)
        return situation(self.spec, self.history, now=self.view.now, slowest_step_seconds=slowest)

    @cached_property
    def preemptions(self) -> list[Preemption]:
        """The preemptions of all attempts except the newest one, whose stop reason may still change."""
        decided = {(each.claim.segment, each.claim.attempt) for each in self.history.attempts[:-1]}
        found = preemptions(self.spec, self.history, beat=self.view.beat)
        return [one for one in found if (one.segment, one.attempt) in decided]


@dataclass(frozen=True)
class Family:
    """One metric of a run, with its description."""

    name: str
    help: str
    read: Callable[[MeasuredRun], Values | float | None]
    """Returns the value, or the values by the additional labels. If the value is unknown, it returns None."""
    unit: str = ""
    """The unit in OpenTelemetry's notation: s for seconds, 1 for a ratio."""
    is_counter: bool = False
    more_labels: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return (*RUN_LABELS, *self.more_labels)

    @property
    def name_in_prometheus(self) -> str:
        return self.name.replace(".", "_") + _SUFFIXES[self.unit] + ("_total" if self.is_counter else "")

    def values(self, run: MeasuredRun) -> Values:
        """Return the values of this metric for one run, by the values of all labels."""
        found = self.read(run)
        by_label = found if isinstance(found, Mapping) else {} if found is None else {(): found}
        return {(run.spec.run_id, run.spec.store.url, *labels): float(value) for labels, value in by_label.items()}


def _state(run: MeasuredRun) -> Values:
    plan = run.history.open_plan
    return {(state_name(run.history), plan.deployment if plan is not None else ""): 1}


def _step_seconds(run: MeasuredRun) -> float | None:
    own = run.view.beat.step_seconds if run.view.beat is not None else None
    return own if own is not None else step_seconds(run.spec, run.history)


def _work_at_risk_seconds(run: MeasuredRun) -> float | None:
    beat = run.view.beat
    if beat is None or beat.step_seconds is None:
        return None
    safe = max(run.history.committed_step, beat.last_commit_step or 0)
    return max(beat.step - safe, 0) * beat.step_seconds


def _slack_seconds(run: MeasuredRun) -> float | None:
    return None if run.summary.is_over else run.now.slack_seconds


def _on_demand_due_seconds(run: MeasuredRun) -> float | None:
    plan = run.history.open_plan
    has_moved = plan is not None and plan.capacity is Capacity.ON_DEMAND
    return None if run.summary.is_over or has_moved else seconds_to_recall(run.now)


def _late_seconds(run: MeasuredRun) -> float | None:
    has_given_up = run.summary.is_over and run.summary.state != "finished"
    return None if has_given_up else run.summary.late_seconds


def _preemptions(run: MeasuredRun) -> Values:
    none = dict.fromkeys((pool.deployment for pool in run.spec.pools.spot), 0)
    found = Counter(one.pool for one in run.preemptions)
    return {(pool,): count for pool, count in {**none, **found}.items()}


def _notices(run: MeasuredRun) -> Values:
    count = Counter(one.was_answered for one in run.preemptions)
    return {(name,): count[was_answered] for was_answered, name in _ANSWERS.items()}


def _notice_answer_seconds(run: MeasuredRun) -> float:
    return sum(one.used_seconds or 0.0 for one in run.preemptions if one.was_answered)


def _verdicts(run: MeasuredRun) -> Values:
    count = Counter(("resume", resume.verdict.kind) for resume in run.history.resumes)
    count.update(("rehearsal", drill.verdict.kind) for drill in run.history.drills)
    return {(check, kind.value): count[check, kind] for check in ("resume", "rehearsal") for kind in VerdictKind}


def _heartbeat_age_seconds(run: MeasuredRun) -> float | None:
    beat = run.view.beat if not run.summary.is_over else None
    return max((run.view.now - beat.beat_at).total_seconds(), 0.0) if beat is not None else None


FAMILIES = (
    Family(
        "segue.run_state",
        "1 for the current state of the run, with the pool of its current attempt",
        _state,
        more_labels=("state", "pool"),
    ),
    Family("segue.committed_steps", "Step of the newest committed checkpoint", lambda run: run.history.committed_step),
    Family("segue.reached_steps", "Step that the run has reached, committed or not", lambda run: run.summary.step),
    Family("segue.goal_steps", "Number of steps at which the run is finished", lambda run: run.spec.steps),
    Family("segue.step", "Seconds per step of the current attempt, or of earlier attempts", _step_seconds, "s"),
    Family(
        "segue.goodput",
        "Part of the paid time of ended attempts that was spent on steps that the run kept, from 0 to 1",
        lambda run: run.view.cost.goodput.share,
        "1",
    ),
    Family(
        "segue.paid",
        "Paid seconds of ended attempts and of standbys, by cause",
        lambda run: {(cause,): seconds for cause, seconds in run.view.cost.seconds_by_cause.items()},
        "s",
        more_labels=("cause",),
    ),
    Family("segue.waited", "Seconds of queue and boot of all attempts", lambda run: run.view.cost.waiting_seconds, "s"),
    Family(
        "segue.work_at_risk",
        "Seconds of training that would be lost if the machine were lost now",
        _work_at_risk_seconds,
        "s",
    ),
    Family("segue.slack", "Seconds until the deadline minus the seconds of work left", _slack_seconds, "s"),
    Family(
        "segue.on_demand_due",
        "Seconds until the run must leave spot for on-demand to meet the deadline, if it commits nothing until then",
        _on_demand_due_seconds,
        "s",
    ),
    Family(
        "segue.late",
        "Seconds from the deadline to the expected end of the run; negative if the run is early",
        _late_seconds,
        "s",
    ),
    Family(
        "segue.deadline_timestamp",
        "Deadline of the run, as a Unix time",
        lambda run: run.spec.deadline.timestamp() if run.spec.deadline is not None else None,
        "s",
    ),
    Family(
        "segue.cost",
        "Cost of the run so far, in the currency of the run spec",
        lambda run: {(run.view.cost.currency,): run.view.cost.cost},
        more_labels=("currency",),
    ),
    Family(
        "segue.saved",
        "Savings as a share of the cost of the same steps on on-demand alone; negative if the run cost more",
        lambda run: run.view.cost.saved_share,
        "1",
    ),
    Family(
        "segue.preemptions",
        "Attempts whose machine was taken back or lost, by pool",
        _preemptions,
        is_counter=True,
        more_labels=("pool",),
    ),
    Family(
        "segue.notices",
        "Notices of preemptions, by answer: answered if the attempt ended by itself, with a report",
        _notices,
        is_counter=True,
        more_labels=("answer",),
    ),
    Family(
        "segue.notice_answer",
        "Sum of the seconds from each answered notice to the end of its attempt",
        _notice_answer_seconds,
        "s",
        is_counter=True,
    ),
    Family(
        "segue.resume_verdicts",
        "Verdicts on resumes and on rehearsals, by kind",
        _verdicts,
        is_counter=True,
        more_labels=("check", "verdict"),
    ),
    Family("segue.heartbeat_age", "Age of the newest heartbeat of the current attempt", _heartbeat_age_seconds, "s"),
    Family(
        "segue.store_up",
        "1 if the parent could read the store, otherwise 0; the other metrics are then older",
        lambda run: run.view.store_trouble is None,
    ),
    Family(
        "segue.recovery_up",
        "1 if recovery would start the parent again after its death, otherwise 0",
        lambda run: run.view.unguarded is None,
    ),
    Family(
        "segue.refreshed_timestamp",
        "Unix time at which the parent computed the metrics of a run that is not over",
        lambda run: None if run.summary.is_over else run.view.now.timestamp(),
        "s",
    ),
)
"""All metrics of a run."""
