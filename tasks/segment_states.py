"""States of segments whose engine could not report them: they are set from the run's log once the API is back."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from segue.tasks.parent_clock import parent_clock
from segue.tasks.prefect_api import SILENCE, quick_client
from segue.tasks.prefect_orchestrator import idempotency_key, name_of
from segue.tasks.segment import state_of

from segue.clock import Clock
from segue.errors import SegueError
from segue.policy.starts import MOST_STARTS
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
"""How long after its report a segment may take to report its state itself."""
_MOST_UNFINISHED = 200
_UNFINISHED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))


def settle_missed(spec: RunSpec) -> None:
    """Set the missed states of a run's segments as `settle_segments` does. Best effort: recovery tries again."""
    clock = parent_clock()
    try:
        with quick_client() as client:
            settle_segments(client, open_log(spec, clock=clock).reload(), now=clock.now())
    except (*SILENCE, ObjectNotFound, StoreReadError) as error:
        log.warning("the states of segments were not looked at reason=%s", type(error).__name__)


def settle_segments(client: SyncPrefectClient, runlog: RunLog, *, now: datetime) -> int:
    """Set the states of segments that have a report in the log and still show as running; how many there were.

    Raises:
        StoreReadError: the log could not be read.
    """
    tags = FlowRunFilterTags(all_=["segue", runlog.run_id])
    return _settle(client, runlog, _unfinished(client, FlowRunFilter(state=_UNFINISHED, tags=tags)), now=now)


def settle_left(
    client: SyncPrefectClient, store: Store, *, spec: StoreSpec, clock: Clock
) -> tuple[list[str], list[str]]:
    """Set the missed states of segments that no parent will look at. Returns what was set, and what failed.

    This concerns the runs of the store, named by `spec`, that have no parent's record, or several unfinished segments.
    """
    by_run: defaultdict[str, list[FlowRun]] = defaultdict(list)
    for run in _unfinished(client, FlowRunFilter(state=_UNFINISHED)):
        if store_of(run) == spec.url:
            by_run[str(run.parameters["spec"].get("run_id"))].append(run)
    done, troubles = [], []
    for run_id, runs in by_run.items():
        try:
            if len(runs) < 2 and read_parent(store, run_id) is not None:
                continue
            settled = _settle(client, log_in(store, run_id, spec, clock=clock).reload(), runs, now=clock.now())
        except (SegueError, ObjectNotFound, *SILENCE) as error:
            troubles.append(f"{run_id}: the states of its segments were not set from its log: {error}")
            continue
        if settled:
            done.append(f"{run_id}: states of its segments were set from its log")
    return done, troubles


def store_of(run: FlowRun) -> str | None:
    """The URL of the store in a flow run's parameters; None when it has none, as after a start with wrong ones."""
    spec = run.parameters.get("spec")
    store = spec.get("store") if isinstance(spec, dict) else None
    return store.get("url") if isinstance(store, dict) else None


def _unfinished(client: SyncPrefectClient, wanted: FlowRunFilter) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["segment"])),
        flow_run_filter=wanted,
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_MOST_UNFINISHED,
    )


def _settle(client: SyncPrefectClient, runlog: RunLog, unfinished: list[FlowRun], *, now: datetime) -> int:
    history = read_history(runlog)
    settled = 0
    for run in unfinished:
        attempt = _last_claimed(run, history)
        plan = None if attempt is not None else _submitted_for(run, history, log_id=runlog.log_id)
        place = attempt.claim if attempt is not None else plan
        report = history.report_of(place.segment, place.attempt) if place is not None else None
        if place is None or report is None or now - _written_at(runlog, report) <= _PATIENCE:
            continue
        state = state_of(report)
        if plan is not None and history.attempt_of(plan.segment, plan.attempt) is not None:
            state = Crashed(name="Fenced", message="Another flow run made this attempt; this one changed nothing.")
        client.set_flow_run_state(run.id, state, force=True)
        log.warning("a segment's state was set from the run's log flow_run=%s", run.id)
        settled += 1
    return settled


def _last_claimed(run: FlowRun, history: History) -> Attempt | None:
    """The attempt by which a flow run is judged: one that makes several segments has the state of the last one."""
    claimed = [attempt for attempt in history.attempts if attempt.claim.flow_run_id == str(run.id)]
    return claimed[-1] if claimed else None


def _submitted_for(run: FlowRun, history: History, *, log_id: str) -> SegmentPlan | None:
    """The plan for which a flow run was created; None for one of another log."""
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    if history.spec is None:
        return None
    numbered = [(plan, number) for plan in plans for number in range(1, MOST_STARTS + 1)]
    keys = {idempotency_key(history.spec, name_of(plan, n), log_id=log_id): plan for plan, n in numbered}
    return keys.get(run.idempotency_key or "")


def _written_at(runlog: RunLog, report: SegmentReport) -> datetime:
    place = report.segment, report.attempt
    entries = (slot.entry for slot in reversed(runlog.slots) if isinstance(slot.entry, ReportEntry))
    return next(e.written_at for e in entries if (e.report.segment, e.report.attempt) == place)
