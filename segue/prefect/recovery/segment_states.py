"""Sets the states of segments from the run's log, if the engines of the segments could not report them to the API."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from datetime import datetime, timedelta

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from segue.clock import Clock
from segue.errors import SegueError
from segue.policy.starts import StartNumbers
from segue.prefect.api import SILENCE, quick_client
from segue.prefect.parent_clock import parent_clock
from segue.prefect.prefect_orchestrator import idempotency_key, name_of
from segue.prefect.state_words import Word, state_of_attempt, state_with
from segue.records import SegmentPlan, SegmentReport
from segue.runlog.entries import ReportEntry
from segue.runlog.history import Attempt, History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import log_in, open_log
from segue.runlog.parents import read_parent
from segue.spec import RunSpec, StoreSpec
from segue.stores.base import Store, StoreReadError

log = logging.getLogger(__name__)

_PATIENCE = timedelta(seconds=60)
"""Time for a segment to report its state to the API, after the segment has written its report to the log."""
_PAGE = 200
_UNFINISHED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
)
_ENDED_BADLY = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.FAILED, StateType.CRASHED]))
_LOOKED_BACK = timedelta(hours=6)
"""Time after the end of a flow run in which segue compares its state with the log. API outages are shorter."""
_OF_CLIENT = re.compile(r"exception: (?:[\w.]+\.)?(\w+)\b")
_OF_WORKER = re.compile(r"infrastructure exited with|process exited with|exited with (?:non-zero )?status code")


def _errors_of_client() -> frozenset[str]:
    """Return the names of the exceptions that Prefect's client raises if the API gives no usable answer."""
    found, names = [httpx.HTTPError], set[str]()
    while found:
        one = found.pop()
        names.add(one.__name__)
        found += one.__subclasses__()
    return frozenset(names | {"PrefectHTTPStatusError"})


_CLIENT_ERRORS = _errors_of_client()


def settle_missed(spec: RunSpec) -> None:
    """Call `settle_segments` for a run. If the call fails, log a warning, because recovery tries again later."""
    clock = parent_clock()
    try:
        with quick_client() as client:
            settle_segments(client, open_log(spec, clock=clock).reload(), now=clock.now())
    except (*SILENCE, ObjectNotFound, StoreReadError) as error:
        log.warning("the states of segments could not be compared with the log reason=%s", type(error).__name__)


def settle_segments(client: SyncPrefectClient, runlog: RunLog, *, now: datetime) -> int:
    """Set the states of segments whose state in Prefect differs from their report in the log. Return their number.

    Prefect shows these segments as running or cancelling, or as ended because the API did not answer.

    Raises:
        StoreReadError: the log could not be read.
    """
    tags = FlowRunFilterTags(all_=["segue", runlog.run_id])
    return _settle(client, runlog, _unsettled(client, now=now, tags=tags), now=now)


def settle_left(
    client: SyncPrefectClient, store: Store, *, spec: StoreSpec, clock: Clock
) -> tuple[list[str], list[str]]:
    """Set the states that segments could not set, if no parent will check these segments. Return texts about successes
    and texts about failures.

    The function skips some runs of the store `spec`. A run is skipped if it has a parent
    record and only one segment to check, and if no API outage ended this segment.
    """
    by_run: defaultdict[str, list[FlowRun]] = defaultdict(list)
    for run in _unsettled(client, now=clock.now()):
        if store_of(run) == spec.url:
            by_run[str(run.parameters["spec"].get("run_id"))].append(run)
    done, troubles = [], []
    for run_id, runs in by_run.items():
        try:
            is_only_one = len(runs) < 2 and not any(is_made_by_outage(run.state) for run in runs)
            if is_only_one and read_parent(store, run_id) is not None:
                continue
            settled = _settle(client, log_in(store, run_id, spec, clock=clock).reload(), runs, now=clock.now())
        except (SegueError, ObjectNotFound, *SILENCE) as error:
            troubles.append(f"{run_id}: the states of its segments were not set from its log: {error}")
            continue
        if settled:
            done.append(f"{run_id}: states of its segments were set from its log")
    return done, troubles


def store_of(run: FlowRun) -> str | None:
    """Return the store's URL in a flow run's parameters. Return None if the parameters have no valid store."""
    spec = run.parameters.get("spec")
    store = spec.get("store") if isinstance(spec, dict) else None
    return store.get("url") if isinstance(store, dict) else None


def is_made_by_outage(state: State | None) -> bool:
    """Whether an engine set this state because the API did not answer, or a worker set it because its engine gave up.

    If a person or segue has set the state, the result is False.
    """
    if state is None or state.type not in (StateType.FAILED, StateType.CRASHED):
        return False
    message = state.message or ""
    raised = _OF_CLIENT.search(message)
    return (raised is not None and raised[1] in _CLIENT_ERRORS) or _is_by_worker(state)


def _is_by_worker(state: State) -> bool:
    return state.name == "Crashed" and _OF_WORKER.search(state.message or "") is not None


def _unsettled(client: SyncPrefectClient, *, now: datetime, tags: FlowRunFilterTags | None = None) -> list[FlowRun]:
    """Return the segments' flow runs that have not ended, or that recently ended because of an outage of the API."""
    unfinished = _segments(client, FlowRunFilter(state=_UNFINISHED, tags=tags))
    lately = FlowRunFilterEndTime(after_=now - _LOOKED_BACK)
    ended = _segments(client, FlowRunFilter(state=_ENDED_BADLY, end_time=lately, tags=tags))
    return unfinished + [run for run in ended if is_made_by_outage(run.state)]


def _segments(client: SyncPrefectClient, wanted: FlowRunFilter) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["segment"])),
        flow_run_filter=wanted,
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_PAGE,
    )


def _settle(client: SyncPrefectClient, runlog: RunLog, unsettled: list[FlowRun], *, now: datetime) -> int:
    history = read_history(runlog)
    settled = 0
    for run in unsettled:
        attempt = _last_claimed(run, history)
        plan = None if attempt is not None else _submitted_for(run, history, log_id=runlog.log_id)
        place = attempt.claim if attempt is not None else plan
        report = history.report_of(place.segment, place.attempt) if place is not None else None
        if place is None or report is None or now - _written_at(runlog, report) <= _PATIENCE:
            continue
        state = state_of_attempt(report)
        if plan is not None and history.attempt_of(plan.segment, plan.attempt) is not None:
            state = state_with(Word.FENCED, "Another flow run made this attempt; this flow run changed nothing.")
        if _agrees(run.state, state):
            continue
        client.set_flow_run_state(run.id, state, force=True)
        log.warning("the state of a segment was set from the run's log flow_run=%s", run.id)
        settled += 1
    return settled


def _agrees(shown: State | None, logged: State) -> bool:
    """Whether a flow run's state agrees with the log. If a worker set the state because a process ended, the state
    means `Lost`."""
    if shown is None:
        return False
    is_same = (shown.type, shown.name, shown.message) == (logged.type, logged.name, logged.message)
    return is_same or (_is_by_worker(shown) and shown.type is logged.type)


def _last_claimed(run: FlowRun, history: History) -> Attempt | None:
    """Return the last attempt that a flow run claimed, which decides the state of a flow run with several segments."""
    claimed = [attempt for attempt in history.attempts if attempt.claim.flow_run_id == str(run.id)]
    return claimed[-1] if claimed else None


def _submitted_for(run: FlowRun, history: History, *, log_id: str) -> SegmentPlan | None:
    """Return the plan for which a flow run was created. Return None if the flow run belongs to another log."""
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    if history.spec is None:
        return None
    numbered = [(plan, number) for plan in plans for number in StartNumbers.of(plan).all]
    keys = {idempotency_key(history.spec, name_of(plan, n), log_id=log_id): plan for plan, n in numbered}
    return keys.get(run.idempotency_key or "")


def _written_at(runlog: RunLog, report: SegmentReport) -> datetime:
    place = report.segment, report.attempt
    entries = (slot.entry for slot in reversed(runlog.slots) if isinstance(slot.entry, ReportEntry))
    return next(e.written_at for e in entries if (e.report.segment, e.report.attempt) == place)
