"""States of segments whose engine could not report them: they are set from the run's log once the API is back."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from segue.tasks.parent_clock import parent_clock
from segue.tasks.prefect_api import SILENCE, quick_client
from segue.tasks.segment import state_of

from segue.clock import Clock
from segue.records import SegmentReport
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.runlog.parents import read_parent
from segue.spec import RunSpec
from segue.stores.base import Store, StoreReadError

log = logging.getLogger(__name__)

_PATIENCE = timedelta(seconds=60)
"""How long after its report a segment may take to report its state itself."""
_MOST_SEGMENTS = 100
"""How many of the newest segments are looked at; a request of the API names 200 flow runs at most."""
_MOST_UNFINISHED = 200
_UNFINISHED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))


def settle_missed(spec: RunSpec) -> None:
    """Set the missed states of a run's segments as `settle_segments` does. Best effort: recovery tries again."""
    clock = parent_clock()
    try:
        with quick_client() as client:
            settle_segments(client, open_log(spec, clock=clock).reload(), now=clock.now())
    except (*SILENCE, StoreReadError) as error:
        log.warning("the states of segments were not looked at reason=%s", type(error).__name__)


def settle_segments(client: SyncPrefectClient, runlog: RunLog, *, now: datetime) -> int:
    """Set the states of segments that have a report in the log and still show as running; how many there were.

    Raises:
        StoreReadError: the log could not be read.
    """
    wanted = _overdue(runlog, now)
    if not wanted:
        return 0
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(wanted)), state=_UNFINISHED)
    )
    for run in runs:
        client.set_flow_run_state(run.id, state_of(wanted[run.id]), force=True)
        log.warning("a segment's state was set from the run's log flow_run=%s", run.id)
    return len(runs)


def settle_left(client: SyncPrefectClient, store: Store, *, url: str, clock: Clock) -> list[str]:
    """Set the missed states of segments that no parent will look at; returns the ids of their runs.

    Looked at are the runs of the store at `url` that have no parent's record, or several unfinished segments.

    Raises:
        StoreReadError: a log could not be read.
    """
    unfinished = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["segment"])),
        flow_run_filter=FlowRunFilter(state=_UNFINISHED),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_MOST_UNFINISHED,
    )
    counts = Counter(str(run.parameters["spec"].get("run_id")) for run in unfinished if store_of(run) == url)
    left = [name for name, count in counts.items() if count > 1 or read_parent(store, name) is None]
    return [
        name for name in left if settle_segments(client, RunLog(store, name, clock=clock).reload(), now=clock.now())
    ]


def store_of(run: FlowRun) -> str | None:
    """The URL of the store in a flow run's parameters; None when it has none, as after a start with wrong ones."""
    spec = run.parameters.get("spec")
    store = spec.get("store") if isinstance(spec, dict) else None
    return store.get("url") if isinstance(store, dict) else None


def _overdue(runlog: RunLog, now: datetime) -> dict[UUID, SegmentReport]:
    """The last report of each flow run that should have reported its state by now."""
    history = read_history(runlog)
    written = {
        (slot.entry.report.segment, slot.entry.report.attempt): slot.entry.written_at
        for slot in runlog.slots
        if isinstance(slot.entry, ReportEntry)
    }
    last = {}
    for attempt in history.attempts:
        if attempt.claim.flow_run_id is not None:
            # A flow run that makes several segments has the state of the last one.
            last[attempt.claim.flow_run_id] = attempt
    reported = {}
    for flow_run_id, attempt in list(last.items())[-_MOST_SEGMENTS:]:
        at = written.get((attempt.claim.segment, attempt.claim.attempt))
        if attempt.report is not None and at is not None and now - at > _PATIENCE:
            reported[UUID(flow_run_id)] = attempt.report
    return reported
