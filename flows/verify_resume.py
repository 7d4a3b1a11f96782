"""Defines the flow `verify-resume`, which trains a run twice on its own pools and store, the second time with kills,
and compares both runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import NonNegativeInt

from segue.errors import SegueError
from segue.flows.train import train
from segue.notices.disturbance import DisturbanceKind
from segue.prefect.api import tagged
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.state_words import Word, state_with, word_of
from segue.prefect.ui.quiet_logs import quieten
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.base import StoreGoneError
from segue.tasks.continuity import publish_verification, record_verification, tidy_verification
from segue.verification.disturber import Disturber, Pace, disturbing, latency_seconds, moments
from segue.verification.runs import DrillRuns
from segue.verification.verification_page import headline
from segue.verification.verifications import Outcome, Verification, VerificationsLog

_LOOK_SECONDS = 1.0


@flow(
    name="verify-resume",
    flow_run_name="verify-{spec.run_id}",
    retries=0,
    validate_parameters=True,
    persist_result=False,
)
def verify_resume(
    spec: RunSpec, *, kills: NonNegativeInt = 1, notices: NonNegativeInt = 1, slot: datetime | None = None
) -> Any:
    """Train `spec` twice on its own spot pools and store, disturb the second run, and compare the final states.

    The run ids of the two runs contain the scheduled time. Therefore the two runs continue if this flow run starts
    again, or if another flow run has this time as its `slot`. The disturbances come at random moments after the first
    commit: the trainer gets SIGKILL `kills` times and a notice `notices` times.
    """
    quieten()
    kinds = [DisturbanceKind.KILL] * kills + [DisturbanceKind.NOTICE] * notices
    if not kinds:
        return Failed(message="Nothing would be disturbed. Fix: set kills or notices above 0.")
    runs = DrillRuns.of(spec, slot=_slot(slot))
    try:
        history = _recorded(runs) or _verified(runs, kinds)
        # The returned states are ignored: the outcome is recorded, and must not change with what follows.
        publish_verification(spec, history, return_state=True)
        tidy_verification(spec, history, return_state=True)
        return tagged(flow_run.id, _state_of(history))
    except SegueError as error:
        return tagged(flow_run.id, state_with(Word.NOT_PROVEN, str(error)))


def _slot(given: datetime | None) -> datetime:
    due: datetime = given or flow_run.scheduled_start_time or datetime.now(UTC)
    return (due if due.tzinfo is not None else due.replace(tzinfo=UTC)).astimezone(UTC).replace(microsecond=0)


def _recorded(runs: DrillRuns) -> tuple[Verification, ...]:
    """Return the verifications up to this slot's. If this slot has no conclusive verification, return none."""
    log = VerificationsLog(open_store(runs.spec.store), runs.spec.run_id, spec=runs.spec.store)

    def read() -> tuple[Verification, ...]:
        try:
            return log.read()
        except StoreGoneError:
            return ()  # There is no store yet.

    history = as_parent(read, what="log of the verifications")
    known = [number for number, one in enumerate(history, 1) if one.slot == runs.slot and one.is_conclusive]
    return history[: known[0]] if known else ()


def _verified(runs: DrillRuns, kinds: Sequence[DisturbanceKind]) -> tuple[Verification, ...]:
    undisturbed, said = _train_to_its_end(runs.undisturbed)
    if said is None and undisturbed.is_finished(runs.undisturbed):
        pace, chance = Pace.of(undisturbed), random.Random(runs.disturbed.run_id)
        planned = moments(kinds, pace, latency_seconds=latency_seconds(runs.disturbed), chance=chance)
        disturber = Disturber(open_log(runs.disturbed), runs.disturbed, planned, clock=parent_clock())
        with disturbing(disturber, runs.disturbed):
            _, said = _train_to_its_end(runs.disturbed)
    return record_verification(runs, kinds, said=said)


def _train_to_its_end(spec: RunSpec) -> tuple[History, str | None]:
    """Start or continue a run, and return its history. If the run has not ended, also return its parent's message."""
    known = as_parent(lambda: _history_of(spec), what="log")
    if known is not None and known.is_over and (known.is_finished(spec) or known.decisions[-1].action == "broken"):
        return known, None  # A failed run continues, because the cause may be corrected.
    state: Any = train(spec, return_state=True)
    if word_of(state) is Word.DUPLICATE:
        _await_end(spec)
    history = as_parent(lambda: read_history(open_log(spec)), what="log")
    return history, None if history.is_over else state.message


def _history_of(spec: RunSpec) -> History | None:
    try:
        return read_history(open_log(spec))
    except StoreGoneError:
        return None  # The parent creates the store.


def _await_end(spec: RunSpec) -> None:
    """Wait for the end of a run that another parent trains. `recover` started this parent after an earlier flow run
    died."""
    runlog, clock = open_log(spec), parent_clock()
    while not as_parent(lambda: read_history(runlog), what="log").is_over:
        clock.sleep(_LOOK_SECONDS)


def _state_of(history: Sequence[Verification]) -> State[Any]:
    newest, message = history[-1], headline(history, now=parent_clock().now())
    match newest.outcome:
        case Outcome.PASSED:
            return Completed(message=message)
        case Outcome.NOT_CONTINUOUS:
            return state_with(Word.NOT_CONTINUOUS, message)
        case Outcome.NOT_PROVEN:
            return state_with(Word.NOT_PROVEN, message)
