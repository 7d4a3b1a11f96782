"""Implements a controller's operations on a run's log: open the run, decide, stop the run.

The Prefect flows and local runs use the same operations. Decisions depend only on the log of the run.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from segue.clock import Clock
from segue.controller.attempt_ends import NothingToAddError, declare_lost
from segue.controller.costs.affordable import refuse_cost
from segue.controller.costs.other_spending import refresh_spending
from segue.controller.costs.prices import refresh_prices
from segue.errors import DriftError, LogMovedError, MissingObjectError, RanksChangedError, RunOverError
from segue.notices.recall import recall
from segue.policy.broken_resumes import SET_ASIDE, to_set_aside
from segue.policy.decide import Decision, decide
from segue.policy.queueing import Queues
from segue.records import SegmentPlan, StopReason
from segue.runlog import keys
from segue.runlog.entries import DecisionEntry, Entry, OpenEntry, QuarantineEntry, ReportEntry
from segue.runlog.history import Checkpoint, History, read_history, require_trusted, require_whole
from segue.runlog.log import RunLog, Stamp
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import StoreReadError
from segue.stores.base import StoreGoneError, StoreWriteError

log = logging.getLogger(__name__)

CANCELLED = "its flow run was cancelled"


def open_run(
    spec: RunSpec, *, clock: Clock, accept_drift: bool = False, requested_at_slot: int | None = None
) -> RunLog:
    """Open the new or existing run that `spec` names, and return its log.

    The function reopens a stopped or cancelled run. If the run was stopped or cancelled after the request to start it,
    the run stays closed. The parent may have waited in a queue for a long time. `requested_at_slot` is the log's next
    slot at the time of the request to start the run.

    Raises:
        StoreUnreachableError, StoreGoneError, DeadlinePassedError, DriftError, PriceSourceError, BudgetError: as for
            `check_start`.
    """
    runlog = check_start(spec, clock=clock, accept_drift=accept_drift, known_slots=requested_at_slot or 0)
    history = read_history(runlog)
    requested = history.next_slot if requested_at_slot is None else requested_at_slot
    cancelled = cancelled_at_slot(runlog)
    if history.stop is None and cancelled is not None and cancelled < requested:
        ended = decide(spec, history, now=clock.now())  # The parent died before it could end the run.
        with suppress(LogMovedError):  # Another start of the run has already recorded the end.
            runlog.append(lambda stamp: _entry(ended, stamp), at=history.next_slot)
        history = read_history(runlog)
    is_stopped_since = history.stop_slot is not None and history.stop_slot >= requested
    if not is_stopped_since and (history.spec != spec or history.stop is not None):
        runlog.append(lambda stamp: OpenEntry.model_validate(stamp(epoch=0) | {"spec": spec}))
        refresh_prices(runlog, spec, read_history(runlog), clock=clock)
    return runlog


def cancelled_at_slot(runlog: RunLog) -> int | None:
    """Return the log slot of the newest report if a person cancelled its attempt and the run has not ended."""
    fresh = (history := read_history(runlog)).fresh_reports
    if not fresh or fresh[-1].stop_reason is not StopReason.CANCELLED or history.open_plan is not None:
        return None
    slots = ((s.number, s.entry) for s in reversed(runlog.slots))
    return next(number for number, entry in slots if isinstance(entry, ReportEntry) and entry.report == fresh[-1])


def check_start(spec: RunSpec, *, clock: Clock, accept_drift: bool = False, known_slots: int = 0) -> RunLog:
    """Check that the run can be opened, without writing to the log of the run. Return the log.

    `known_slots` is the number of slots that the log is known to have. A log with fewer slots is in a different store,
    or its store is not mounted. The function does not create a missing store again.

    Raises:
        StoreGoneError: the log has fewer slots than `known_slots`.
        SpecError: the spec contains credentials.
        SigningKeyError: segue cannot use the key that the spec names. ForgedRecordError, ReplayedRecordError,
        BrokenChainError, UnsignedLogError, SigningKeyNeededError: the log does not match the signatures of the key that
        the spec names.
        StoreUnreachableError: the store cannot be written, or has no reliable put-if-absent.
        DeadlinePassedError: the deadline of a new run, or a new deadline, is in the past.
        DriftError: the run was started with another recipe, config, seed or goal, and `accept_drift` is off.
        RanksChangedError: the run trains a program, and its newest checkpoint has another number of ranks.
        PriceSourceError: no prices of the run are known, and the source of prices fails.
        BudgetError: the budget of a run that begins, or begins again, does not pay for one attempt or for the run.
    """
    spec.require_no_secrets()
    runlog = open_log(spec, clock=clock)
    store = runlog.store
    is_new = not known_slots and _is_new_store(runlog)
    if is_new:
        # These checks come before the check of the store, which creates a folder, because a refused request must leave
        # nothing.
        spec.require_future_deadline(clock.now())
        refuse_cost(None, spec, History(), clock=clock)
    if known_slots and runlog.reload().next_slot < known_slots:
        why = f"the log of {spec.run_id} had {known_slots} records and has {runlog.next_slot} now"
        raise StoreGoneError(url=store.url, why=why)
    store.check()
    _refuse_past_deadline(runlog, spec, clock)
    history = read_history(runlog)
    if history.spec is not None and not accept_drift:
        _refuse_drift(history.spec, spec)
    if spec.program is not None and spec.ranks is not None and history.newest is not None:
        newest = history.newest.manifest
        if newest.environment.world_size != spec.ranks:
            before = newest.environment.world_size
            raise RanksChangedError(run_id=spec.run_id, step=newest.step, before=before, now=spec.ranks)
    if not is_new:
        refuse_cost(runlog, spec, history, clock=clock)
    return runlog


def decide_next(runlog: RunLog, spec: RunSpec, *, clock: Clock, queues: Queues | None = None) -> Decision:
    """Decide the next action and write the decision to the log.

    `queues` contains the queues of the pools, if the pools have queues. If the newest plan has no report, the function
    returns the newest plan again. The attempt of this plan may be alive, or the parent may have died before the attempt
    started.

    Raises:
        StoreWriteError, StoreReadError: the function decided nothing. It is safe to call the function again.
        PriceSourceError: no prices of the run are known, and the source of prices fails. NothingTrustedError,
        LostRecordError: the log is signed, and the checkpoints of the run or a record are damaged.
    """
    known: int | None = None
    while True:
        history = read_history(runlog)
        known = len(history.decisions) if known is None else known
        plan = history.open_plan
        if history.stop is not None and (plan is None or history.attempt_of(plan.segment, plan.attempt) is None):
            return Decision("stopped", history.stop.reason)
        if plan is not None and _is_void(history, plan):
            declare_lost(runlog, plan, why="the import ended before it claimed the run")
            continue
        if plan is not None:
            return Decision(action="run", reason="continue the attempt that was already decided", plan=plan)
        require_whole(runlog, history)
        faulty = to_set_aside(history)
        if faulty is not None:
            _set_aside(runlog, faulty, history)
            continue
        if refresh_prices(runlog, spec, history, clock=clock) or refresh_spending(runlog, spec, history, clock=clock):
            continue
        require_trusted(runlog, history, has_checkpoint=bool(history.usable))
        last = history.decisions[-1] if history.decisions else None
        if last is not None and last.plan is None and last.action != "import" and len(history.decisions) > known:
            # Another parent has just ended the run. A new decision would start the run again.
            return Decision(last.action, last.reason, numbers=last.numbers)
        decision = _of_log(runlog.log_id, decide(spec, history, now=clock.now(), queues=queues))
        if decision.action == "finished" and last is not None and last.action == "finished":
            return decision
        try:
            runlog.append(lambda stamp, made=decision: _entry(made, stamp), at=history.next_slot)  # type: ignore[misc]
        except LogMovedError:
            continue  # Another parent or a fenced attempt has written to the log: decide again.
        if decision.warning:
            log.warning("%s", decision.warning)
        if decision.action == "finished":
            _tidy(runlog)
        return decision


def request_stop(runlog: RunLog, *, reason: str) -> SegmentPlan | None:
    """End the run at the request of a person.

    Return the plan of the recalled attempt, or None if no attempt runs. After this call, the parent starts no further
    attempt. If a person starts the run again with its run id, the run resumes.

    Raises:
        RunOverError: the run has already ended.
        StoreWriteError, StoreReadError: the store could not be used. It is safe to call the function again.
    """

    def build(stamp: Stamp) -> Entry:
        history = read_history(runlog)
        last = history.decisions[-1] if history.decisions else None
        if history.stop is not None:
            raise NothingToAddError
        if last is not None and history.is_over:
            raise RunOverError(run_id=runlog.run_id, action=last.action, step=history.committed_step)
        facts = {"plan": None, "action": "stopped", "reason": reason}
        return DecisionEntry.model_validate(stamp(epoch=0) | facts)

    with suppress(NothingToAddError):
        runlog.append(build)
    history = read_history(runlog)
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    if attempt is None:
        return None
    recall(runlog.store, run_id=runlog.run_id, attempt_id=attempt.claim.attempt_id, reason=reason)
    return plan


def _tidy(runlog: RunLog) -> None:
    """Remove half-written objects that remain from killed writers of a finished run."""
    try:
        runlog.store.drop_unfinished(keys.run_prefix(runlog.run_id))
    except (StoreReadError, StoreWriteError) as error:
        log.warning("could not remove half-written objects of the run reason=%s", error)


def _is_void(history: History, plan: SegmentPlan) -> bool:
    """Whether the plan is for an import that never began. A trainer would then train the wrong weights."""
    return history.is_import(plan.segment, plan.attempt) and history.attempt_of(plan.segment, plan.attempt) is None


def _is_new_store(runlog: RunLog) -> bool:
    try:
        runlog.reload()
    except StoreGoneError:
        return True
    except (StoreReadError, MissingObjectError):
        pass  # The later check of the store names the problem.
    return False


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
    """Quarantine a checkpoint.

    After this call, no attempt resumes from the checkpoint. Its bytes remain as evidence.
    """
    facts = {"slot": checkpoint.ref.slot, "checkpoint": checkpoint.ref, "reason": SET_ASIDE}
    # If another process has written first, it may have quarantined the checkpoint. The caller reads the log again.
    with suppress(LogMovedError):
        runlog.append(lambda stamp: QuarantineEntry.model_validate(stamp(epoch=0) | facts), at=history.next_slot)


def _of_log(log_id: str, decision: Decision) -> Decision:
    """Return the decision with the log's id in its plan.

    Because of the id, a different log with the same name refuses the plan.
    """
    plan = decision.plan
    return decision if plan is None else replace(decision, plan=plan.model_copy(update={"log_id": log_id}))


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
