"""Turnarounds on a warm local pool: one run whose segments get notices in turn, on a separate Prefect."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun

from benchmarks.turnaround.run_starts import cold_start, medians, seconds_between, starts, warm_start
from segue.clock import SystemClock
from segue.controller.steps import open_run, request_stop
from segue.deployments.follow import open_client, trigger
from segue.deployments.local_stack.stack import LocalStack
from segue.errors import OrchestratorError
from segue.runlog.entries import ReportEntry
from segue.runlog.history import Attempt, History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec

_T = TypeVar("_T")
_RUN_ID = "turnaround"
_PLANNED_STEPS = 1600
"""Steps of a segment with a planned end: about ten seconds, so that the next trainer has time to boot."""
_WARM_SECONDS = 20.0
"""Seconds that a segment trains, so that its pool's worker has the next processes ready: ten seconds, and their
boot."""
_FEWER = 2
"""Number of turnarounds for each planned end and each death."""
_LONGEST_SECONDS = 120.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Turnaround:
    """One turnaround, in seconds."""

    decision_to_created: float
    """Seconds from the decision in the log to the flow run on the server."""
    created_to_running: float
    """Seconds until the engine has begun the flow: the worker's poll, Python, Prefect."""
    running_to_claim: float
    """Seconds until the trainer has claimed the run: Python, torch, the log."""
    claim_to_first_step: float
    """Seconds until the first new step is done: build, restore, replay of the witness rows."""

    @property
    def orchestration(self) -> float:
        return self.decision_to_created + self.created_to_running

    @property
    def total(self) -> float:
        return self.orchestration + self.running_to_claim + self.claim_to_first_step


@dataclass(frozen=True)
class PlannedEnd:
    """One planned end in seconds, from the last step to the next step on the same machine."""

    last_step_to_report: float
    """Seconds from the last step of the segment until its report is in the log: the last save, and the end of the
    attempt."""
    report_to_decision: float
    """Seconds until the parent has read the report and written its next decision."""
    decision_to_claim: float
    """Seconds until the booted trainer of the same machine has claimed the next segment."""
    claim_to_first_step: float

    @property
    def total(self) -> float:
        return self.last_step_to_report + self.report_to_decision + self.decision_to_claim + self.claim_to_first_step


def measure(count: int, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians of `count` turnarounds and of their parts, and of the other figures.

    Raises:
        OrchestratorError: a segment did not train within two minutes, or `segue run` failed.
    """
    fewer = max(1, count // _FEWER)  # The other figures differ less from each other.
    with tempfile.TemporaryDirectory(prefix="segue-turnaround-") as name:
        folder = Path(name)
        cold = starts(fewer, cold_start, folder / "cold", say=say)
        stack = LocalStack(folder / "prefect", home=Path.cwd(), say=say)
        try:
            stack.start()
            with stack.settings(), open_client() as client:
                on_this = partial(warm_start, environment=stack.environment())
                warm = starts(fewer, on_this, folder / "warm", say=say)
                found = _turnarounds(client, folder, count, say)
                planned_ends = _planned_ends(client, folder, fewer, say)
                figures = report(found, planned_ends, _deaths(client, folder, fewer, say))
        finally:
            stack.stop()
    return figures | medians(cold, name="cold_run") | medians(warm, name="warm_run")


def report(found: list[Turnaround], planned_ends: list[PlannedEnd], deaths: list[float]) -> dict[str, Any]:
    """The figures of these turnarounds, and of planned ends and detected deaths, in seconds. The function is pure."""
    totals = [each.total for each in planned_ends]
    parts = _medians(found) | {f"planned_end_{name}": value for name, value in _medians(planned_ends).items()}
    return {
        "turnarounds": len(found),
        "decision_to_first_step_seconds": round(statistics.median(each.total for each in found), 2),
        "orchestration_seconds": round(statistics.median(each.orchestration for each in found), 2),
        "slowest_seconds": round(max(each.total for each in found), 2),
        "planned_end_seconds": round(statistics.median(totals), 2),
        "slowest_planned_end_seconds": round(max(totals), 2),
        "death_to_report_seconds": round(statistics.median(deaths), 2),
        "slowest_death_to_report_seconds": round(max(deaths), 2),
    } | {f"{name}_seconds": round(value, 2) for name, value in parts.items()}


def _medians(found: Sequence[Turnaround] | Sequence[PlannedEnd]) -> dict[str, float]:
    """The median of each part."""
    names = [field.name for field in fields(found[0])]
    return {name: statistics.median(getattr(each, name) for each in found) for name in names}


def _turnarounds(client: SyncPrefectClient, folder: Path, count: int, say: Callable[[str], None]) -> list[Turnaround]:
    spec = _spec(folder)
    runlog = open_run(spec, clock=SystemClock())
    trigger(client, spec)
    for number in range(count + 1):  # The first attempt resumes nothing, and the pool is cold.
        attempt = _training(runlog, number)
        say(f"segment {number} of {count}: claimed {_claimed_after(runlog, attempt):.1f} s after its decision")
        SystemClock().sleep(_WARM_SECONDS)
        if number < count:
            os.kill(attempt.claim.segment_pid, signal.SIGTERM)
    request_stop(runlog, reason="the benchmark has all its turnarounds")
    _wait(lambda: read_history(runlog).open_plan is None or None, what="the end of the last segment")
    history = read_history(runlog)
    by_name = {run.name: run for run in _flow_runs(client)}
    return [_turnaround(history, attempt, by_name) for attempt in history.attempts[1:]]


def _planned_ends(client: SyncPrefectClient, folder: Path, count: int, say: Callable[[str], None]) -> list[PlannedEnd]:
    """The planned ends of a run whose segments train one after the other on the same machine."""
    run = {"run_id": "planned", "steps": (count + 1) * _PLANNED_STEPS, "segment": {"steps": _PLANNED_STEPS}}
    runlog = open_run(_spec(folder, **run), clock=SystemClock())
    trigger(client, _spec(folder, **run))
    for number in range(count + 1):
        _training(runlog, number)
        say(f"planned end {number} of {count}: the next segment trains")
    _wait(lambda: read_history(runlog).is_over or None, what="the end of the last segment")
    history = read_history(runlog)
    reported = {
        slot.entry.report.attempt_id: slot.entry.written_at
        for slot in runlog.slots
        if isinstance(slot.entry, ReportEntry)
    }
    return [
        _planned_end(history, last, following, reported_at=reported[last.claim.attempt_id])
        for last, following in pairwise(history.attempts)
    ]


def _deaths(client: SyncPrefectClient, folder: Path, count: int, say: Callable[[str], None]) -> list[float]:
    """Seconds from the SIGKILL of a trainer to the report in the log that the attempt is lost."""
    spec = _spec(folder, run_id="deaths", checkpoints={"every_steps": 100})
    runlog = open_run(spec, clock=SystemClock())
    trigger(client, spec)
    killed_at = []
    for number in range(count):
        _training(runlog, number)
        attempt = _wait(lambda number=number: _after_a_commit(runlog, number), what=f"a commit of segment {number}")  # type: ignore[misc]
        assert attempt.claim.trainer_pid is not None
        os.kill(attempt.claim.trainer_pid, signal.SIGKILL)
        killed_at.append(SystemClock().now())
        say(f"death {number + 1} of {count}")
    _training(runlog, count)
    request_stop(runlog, reason="the benchmark has all its deaths")
    _wait(lambda: read_history(runlog).open_plan is None or None, what="the end of the last segment")
    reports = [slot.entry for slot in runlog.slots if isinstance(slot.entry, ReportEntry)]
    return [seconds_between(at, entry.written_at) for at, entry in zip(killed_at, reports, strict=False)]


def _claimed_after(runlog: RunLog, attempt: Attempt) -> float:
    decision = read_history(runlog).decision_of(attempt.claim.segment, attempt.claim.attempt)
    return seconds_between(decision.written_at, attempt.claim.written_at) if decision is not None else 0.0


def _after_a_commit(runlog: RunLog, number: int) -> Attempt | None:
    attempt = read_history(runlog).attempts[number]
    return attempt if attempt.commits else None


def _planned_end(history: History, last: Attempt, following: Attempt, *, reported_at: datetime) -> PlannedEnd:
    claim, ended, begun = following.claim, last.report, following.report
    decision = history.decision_of(claim.segment, claim.attempt)
    assert ended is not None
    assert begun is not None
    assert decision is not None
    trained_seconds = ended.startup_seconds + ended.train_seconds
    return PlannedEnd(
        last_step_to_report=seconds_between(last.claim.written_at, reported_at) - trained_seconds,
        report_to_decision=seconds_between(reported_at, decision.written_at),
        decision_to_claim=seconds_between(decision.written_at, claim.written_at),
        claim_to_first_step=begun.startup_seconds,
    )


def _spec(folder: Path, **changes: Any) -> RunSpec:
    fields_of_spec = {
        "run_id": _RUN_ID,
        "recipe": "segue.testing.recipes:tiny",
        "config": {"pause_seconds": 0.005},
        "steps": 10_000_000,
        "threads": 1,
        "store": {"url": str(folder / "store")},
        "checkpoints": {"every_steps": 1_000_000},
        "liveness": {"heartbeat_seconds": 0.5},
        "continuity": {"rehearsal": "off"},
        "policy": {"name": "spot_only"},
    }
    return RunSpec.parse(fields_of_spec | changes, source="the benchmark's spec")


def _training(runlog: RunLog, number: int) -> Attempt:
    """The attempt with this number, once it trains."""

    def found() -> Attempt | None:
        attempts = read_history(runlog).attempts
        beat = last_heartbeat(runlog, attempts[number]) if len(attempts) > number else None
        return attempts[number] if beat is not None and beat.phase == "training" else None

    return _wait(found, what=f"segment {number}")


def _wait(condition: Callable[[], _T | None], *, what: str) -> _T:
    clock = SystemClock()
    give_up_at = clock.monotonic() + _LONGEST_SECONDS
    while (found := condition()) is None:
        if clock.monotonic() > give_up_at:
            too_long = f"{what} took longer than {_LONGEST_SECONDS:.0f} s."
            raise OrchestratorError(what=too_long, fix="run the benchmark on a machine that is not busy.")
        clock.sleep(_POLL_SECONDS)
    return found


def _flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", _RUN_ID])))


def _turnaround(history: History, attempt: Attempt, by_name: dict[str, FlowRun]) -> Turnaround:
    claim, report_of = attempt.claim, attempt.report
    decision = history.decision_of(claim.segment, claim.attempt)
    run = by_name[f"{_RUN_ID}-seg{claim.segment}-a{claim.attempt}-{claim.capacity}"]
    assert decision is not None
    assert report_of is not None
    assert run.created is not None
    assert run.start_time is not None
    return Turnaround(
        decision_to_created=seconds_between(decision.written_at, run.created),
        created_to_running=seconds_between(run.created, run.start_time),
        running_to_claim=seconds_between(run.start_time, claim.written_at),
        claim_to_first_step=report_of.startup_seconds,
    )
