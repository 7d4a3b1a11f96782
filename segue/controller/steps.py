"""What whoever steers a run does with its log: open it, decide, declare an attempt lost.

Shared by the Prefect flows and by the drill. No decision rests on anything but the log.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from segue.clock import Clock
from segue.errors import DriftError, LogMovedError, MissingObjectError, RunOverError
from segue.notices.recall import recall
from segue.policy.broken_resumes import SET_ASIDE, to_set_aside
from segue.policy.decide import Decision, decide
from segue.records import (
    Finding,
    Heartbeat,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
)
from segue.runlog.entries import DecisionEntry, Entry, OpenEntry, QuarantineEntry, ReportEntry, VerdictEntry
from segue.runlog.heartbeat import last_heartbeat
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.stores import StoreReadError, open_store

log = logging.getLogger(__name__)


def open_run(spec: RunSpec, *, clock: Clock, accept_drift: bool = False) -> RunLog:
    """The log of the run that `spec` names, new or continued.

    Raises:
        StoreUnreachableError, DeadlinePassedError, DriftError: as `check_start`.
    """
    runlog = check_start(spec, clock=clock, accept_drift=accept_drift)
    history = read_history(runlog)
    if history.spec != spec or history.stop is not None:
        runlog.append(lambda stamp: OpenEntry.model_validate(stamp(epoch=0) | {"spec": spec}))
    return runlog


def check_start(spec: RunSpec, *, clock: Clock, accept_drift: bool = False) -> RunLog:
    """The log of the run that `spec` names, with nothing written to it, once the run can be opened.

    Raises:
        StoreUnreachableError: the store cannot be written, or does not keep the log's promise.
        DeadlinePassedError: a new run, or a new deadline, that lies in the past.
        DriftError: the run was started with another recipe, config, seed or goal, and `accept_drift` is off.
    """
    store = open_store(spec.store)
    runlog = RunLog(store, spec.run_id, clock=clock)
    if spec.deadline is not None and spec.deadline <= clock.now():
        # Before the store's check, which makes the folder: an impossible request shall leave nothing behind.
        with suppress(StoreReadError, MissingObjectError):
            _refuse_past_deadline(runlog, spec, clock)
    store.check()
    _refuse_past_deadline(runlog, spec, clock)
    history = read_history(runlog)
    if history.spec is not None and not accept_drift:
        _refuse_drift(history.spec, spec)
    return runlog


def decide_next(runlog: RunLog, spec: RunSpec, *, clock: Clock) -> Decision:
    """The next decision, in the log when this returns.

    A plan that was decided and not yet reported is given back as it is: its attempt may be alive, and whoever decided
    it may have died before starting it.

    Raises:
        StoreWriteError, StoreReadError: nothing was decided; trying again is safe.
    """
    has_moved = False
    while True:
        history = read_history(runlog)
        plan = history.open_plan
        if history.stop is not None and (plan is None or history.attempt_of(plan.segment, plan.attempt) is None):
            return Decision("stopped", history.stop.reason)
        if plan is not None and _is_void(history, plan):
            declare_lost(runlog, plan, why="the import ended before it claimed the run")
            continue
        if plan is not None:
            return Decision(action="run", reason="goes on with the attempt decided before", plan=plan)
        faulty = to_set_aside(history)
        if faulty is not None:
            _set_aside(runlog, faulty, history)
            continue
        last = history.decisions[-1] if history.decisions else None
        if last is not None and last.plan is None and last.action != "import" and has_moved:
            # Another parent ended the run in this very moment. To decide again would start it again.
            return Decision(last.action, last.reason, numbers=last.numbers)
        decision = decide(spec, history, now=clock.now())
        if decision.action == "finished" and last is not None and last.action == "finished":
            return decision
        try:
            runlog.append(lambda stamp, made=decision: _entry(made, stamp), at=history.next_slot)  # type: ignore[misc]
        except LogMovedError:
            has_moved = True  # Another parent, or a zombie's last word: decide again on what the log says now.
            continue
        return decision


def request_stop(runlog: RunLog, *, reason: str) -> SegmentPlan | None:
    """End the run on a person's request; the plan of the attempt that is asked to commit and stop, if there is one.

    The parent starts nothing more. Starting the run again with the same run id continues it from its last checkpoint.

    Raises:
        RunOverError: the run has ended already.
        StoreWriteError, StoreReadError: trying again is safe.
    """

    def build(stamp: Stamp) -> Entry:
        history = read_history(runlog)
        last = history.decisions[-1] if history.decisions else None
        if history.stop is not None:
            raise _NothingToAddError
        if last is not None and last.plan is None:
            raise RunOverError(run_id=runlog.run_id, action=last.action, step=history.committed_step)
        facts = {"plan": None, "action": "stopped", "reason": reason}
        return DecisionEntry.model_validate(stamp(epoch=0) | facts)

    with suppress(_NothingToAddError):
        runlog.append(build)
    history = read_history(runlog)
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    if attempt is None:
        return None
    recall(runlog.store, run_id=runlog.run_id, attempt_id=attempt.claim.attempt_id, reason=reason)
    return plan


def declare_lost(runlog: RunLog, plan: SegmentPlan, *, why: str, got_capacity: bool = True) -> SegmentReport:
    """Write the report of an attempt that ended without one; gives back its own if it came after all.

    Raises:
        StoreWriteError, StoreReadError: not written; trying again is safe.
    """
    beat = last_heartbeat(runlog, read_history(runlog).attempt_of(plan.segment, plan.attempt))

    def build(stamp: Stamp) -> Entry:
        history = read_history(runlog)
        if history.report_of(plan.segment, plan.attempt) is not None:
            raise _NothingToAddError
        had_machine = got_capacity and not history.is_import(plan.segment, plan.attempt)
        report = _lost_report(history, plan, beat, why).model_copy(update={"got_capacity": had_machine})
        return ReportEntry.model_validate(stamp(epoch=0) | {"report": report})

    with suppress(_NothingToAddError):
        runlog.append(build)
    report = read_history(runlog).report_of(plan.segment, plan.attempt)
    assert report is not None
    return report


class _NothingToAddError(Exception):
    """Leaves an append: the log says already what was about to be said."""


def _is_void(history: History, plan: SegmentPlan) -> bool:
    """Whether an import announced itself and never began. A trainer that took its plan would train other weights."""
    return history.is_import(plan.segment, plan.attempt) and history.attempt_of(plan.segment, plan.attempt) is None


def _refuse_past_deadline(runlog: RunLog, spec: RunSpec, clock: Clock) -> None:
    history = read_history(runlog.reload())
    if history.spec is None or history.spec.deadline != spec.deadline:
        spec.require_future_deadline(clock.now())


def _refuse_drift(before: RunSpec, now: RunSpec) -> None:
    old, new = before.identity(), now.identity()
    changed = {
        name: (old.get(name, "not set"), new.get(name, "not set"))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name != "config"
    }
    if changed:
        raise DriftError(run_id=now.run_id, fields=changed)


def _set_aside(runlog: RunLog, checkpoint: Checkpoint, history: History) -> None:
    """Nothing resumes from it any more; its bytes stay, as evidence."""
    facts = {"slot": checkpoint.ref.slot, "checkpoint": checkpoint.ref, "reason": SET_ASIDE}
    with suppress(LogMovedError):  # Then whoever moved it may have said so too.
        runlog.append(lambda stamp: QuarantineEntry.model_validate(stamp(epoch=0) | facts), at=history.next_slot)


def _entry(decision: Decision, stamp: Stamp) -> Entry:
    return DecisionEntry.model_validate(
        stamp(epoch=0)
        | {
            "plan": decision.plan,
            "action": decision.action,
            "reason": decision.reason,
            "numbers": decision.numbers,
        }
    )


def _lost_report(history: History, plan: SegmentPlan, beat: Heartbeat | None, why: str) -> SegmentReport:
    attempt = history.attempt_of(plan.segment, plan.attempt)
    commits = attempt.commits if attempt else ()
    start = plan.parent.step if plan.parent else 0
    committed = commits[-1].step if commits else start
    reached = max(beat.step if beat else committed, committed)
    rate = beat.step_seconds if beat else None
    steps = reached - start
    alive = (beat.beat_at - attempt.claim.written_at).total_seconds() if beat and attempt else 0.0
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=attempt.claim.attempt_id if attempt else None,
        capacity=plan.capacity,
        stop_reason=StopReason.LOST,
        from_step=start,
        to_step=reached,
        checkpoint=commits[-1] if commits else None,
        lost_steps=reached - committed,
        seconds=max(alive, 0.0),
        train_seconds=steps * rate if rate else 0.0,
        train_steps=steps if rate else 0,
        startup_seconds=max(alive - steps * rate, 0.0) if rate else 0.0,
        note=why,
    )


def settle_verdict(runlog: RunLog, report: SegmentReport) -> Verdict | None:
    """The verdict about an attempt's resume: its own, or `unverified` when it ended before it could tell.

    None when it did not resume, or never claimed the run.

    Raises:
        StoreWriteError, StoreReadError: not known; trying again is safe.
    """
    parent = read_history(runlog).parent_of(report.segment, report.attempt)

    def build(stamp: Stamp) -> Entry:
        attempt = read_history(runlog).attempt_named(report.attempt_id)
        if attempt is None or attempt.verdict is not None or parent is None:
            raise _NothingToAddError
        finding = Finding(component="run", channel="time", sentence="the attempt ended before a step was replayed")
        verdict = Verdict(kind=VerdictKind.UNVERIFIED, findings=(finding,))
        facts = {"attempt_id": attempt.claim.attempt_id, "parent": parent, "verdict": verdict}
        return VerdictEntry.model_validate(stamp(epoch=0) | facts)

    with suppress(_NothingToAddError):
        runlog.append(build)
    attempt = read_history(runlog).attempt_named(report.attempt_id)
    return attempt.verdict if attempt else None
