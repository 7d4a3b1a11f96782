"""The results of the runs of a fleet, from their logs and from Prefect."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

from segue.prefect.recovery.segment_states import store_of
from segue.records import Capacity, SegmentReport, StopReason
from segue.reports.summary import late_seconds_at_end
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec


@dataclass(frozen=True)
class Outcome:
    """Counts over all runs."""

    finished: int
    late: int
    trained_twice: int
    """Runs with a step that two attempts trained although none was lost, or with two flow runs for one attempt."""
    attempts: int
    attempts_without_a_machine: int
    """Requests that were withdrawn, because no slot was free within the capacity timeout."""
    attempts_on_demand: int
    preemptions: int
    """Attempts that lost a machine. No machine is taken in this benchmark, so each such attempt is an error, or a wait
    that was counted as a loss."""
    longest_wait_seconds: int
    """Seconds from a decision to the claim of its attempt: queue and boot."""


def judge(client: SyncPrefectClient, specs: list[RunSpec]) -> Outcome:
    """Read every log, and every flow run of the runs."""
    histories = [read_history(open_log(spec).reload()) for spec in specs]
    reports = [report for history in histories for report in history.last_reports()]
    late = [late_seconds_at_end(history) for history in histories]
    return Outcome(
        finished=sum(history.is_finished(spec) for history, spec in zip(histories, specs, strict=True)),
        late=sum(seconds is not None and seconds > 0 for seconds in late),
        trained_twice=sum(
            _trained_twice(history, spec) or _has_two_flow_runs(client, spec)
            for history, spec in zip(histories, specs, strict=True)
        ),
        attempts=len(reports),
        attempts_without_a_machine=sum(report.stop_reason is StopReason.NO_CAPACITY for report in reports),
        attempts_on_demand=sum(report.capacity is Capacity.ON_DEMAND and report.got_capacity for report in reports),
        preemptions=sum(_was_preempted(report) for report in reports),
        longest_wait_seconds=round(max((_longest_wait(history) for history in histories), default=0.0)),
    )


def slot_seconds(spec: RunSpec) -> float:
    """Time for which a run held slots: from the decision for each attempt, without waits, to the attempt's end."""
    history = read_history(open_log(spec).reload())
    held = 0.0
    for attempt in history.attempts:
        decision = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
        if decision is not None and attempt.report is not None:
            held += (attempt.claim.written_at - decision.written_at).total_seconds() + attempt.report.seconds
    return held


def _was_preempted(report: SegmentReport) -> bool:
    return report.stop_reason.is_preemption and report.got_capacity


def _trained_twice(history: History, spec: RunSpec) -> bool:
    trained = sum(report.to_step - report.from_step for report in history.last_reports())
    lost = sum(report.lost_steps for report in history.last_reports())
    return trained - lost != spec.steps


def _has_two_flow_runs(client: SyncPrefectClient, spec: RunSpec) -> bool:
    tags = FlowRunFilterTags(all_=["segue", spec.run_id])
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags))
    names = Counter(run.name for run in found if store_of(run) == spec.store.url)
    return any(count > 1 for count in names.values())


def _longest_wait(history: History) -> float:
    waits = [0.0]
    for attempt in history.attempts:
        decision = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
        if decision is not None:
            waits.append((attempt.claim.written_at - decision.written_at).total_seconds())
    return max(waits)
