"""Reads the start of a flow run on its pool: the duration, the messages of the infrastructure, and refusals."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterLevel
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import LogSort

from segue.prefect.answers import Answers
from segue.prefect.messenger import Messenger

_ASK_SECONDS = 10.0
"""Seconds between two requests for the time that a flow run has been Pending."""
_LONG_PENDING = timedelta(minutes=15)
"""If a flow run is Pending for longer than this time, segue reports a problem that needs a person."""
_SAID_CHARACTERS = 300
"""Maximum number of characters of a worker's message, and of the fix in the message. The rest is cut off."""
_FIX = " Resolution: "
"""Text before the fix in a message from the observer of Prefect's Kubernetes worker."""

_LOOK = "look at its job or task there: can its image be pulled?"
_THEN = "After a change of the deployment, delete this flow run: a new attempt follows."


def said_of_start(client: SyncPrefectClient, flow_run_id: UUID | None) -> str | None:
    """Return a worker's newest log message about a flow run that has not started, such as `no node` or `no image`."""
    if flow_run_id is None:
        return None
    run = client.read_flow_run(flow_run_id)
    if run.state is None or not run.state.is_pending():
        return None
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]), level=LogFilterLevel(ge_=logging.WARNING))
    said = client.read_logs(log_filter=wanted, limit=1, sort=LogSort.TIMESTAMP_DESC)
    return why_pending(run, said=said[0].message if said else None)


def why_pending(run: FlowRun, *, said: str | None) -> str | None:
    """Return why a flow run is Pending, from the message of its infrastructure, with the fix. The function is pure.

    Some pools do not report an image that cannot be pulled. Therefore, if the infrastructure sends no message, the
    function returns a reason after some time.
    """
    is_long = _pending_for(run) > _LONG_PENDING
    if said is None and not is_long:
        return None
    what, _, fix = " ".join((said or "its infrastructure reports nothing").split()).partition(_FIX)
    parts = [what[:_SAID_CHARACTERS].rstrip(".")]
    fix = fix[:_SAID_CHARACTERS]
    if is_long:
        minutes = _LONG_PENDING.total_seconds() / 60
        where = f" ({run.infrastructure_pid})" if run.infrastructure_pid else ""
        parts.append(f"Pending for more than {minutes:.0f} min{where}")
        fix = f"{fix or _LOOK} {_THEN}"
    return "; ".join(parts) + (f". Fix: {fix}" if fix else "")


class StartTimes:
    """Measures for how long flow runs have been starting. No method waits for the API.

    The start of a flow run begins when a worker takes the flow run. The time in which the pod or task of the flow run
    waits for a machine or an image does not count. After this wait, segue measures the start again, from the moment at
    which the pod or task runs.
    """

    def __init__(self, messenger: Messenger) -> None:
        # An ordinary start is over before the first request.
        self._answers: Answers[float] = Answers(
            messenger, what="start time of an attempt", period_seconds=_ASK_SECONDS, asks_at_once=False
        )
        self._since: dict[UUID, float] = {}

    def seconds(self, flow_run_id: UUID, state: State[Any] | None) -> float | None:
        """Return the seconds for which a flow run has been starting. Return None if the flow run is not starting."""
        if state is None or not (state.is_pending() or state.is_running()):
            self._since.pop(flow_run_id, None)
            return None
        now = time.monotonic()
        if state.is_pending():
            # The server knows this time even if another parent watched the flow run earlier.
            ask = partial(_taken_at, flow_run_id=flow_run_id)
            taken_at = self._answers.newest((flow_run_id, state.id), ask)
            if taken_at is not None:
                self._since[flow_run_id] = taken_at
        since = self._since.setdefault(flow_run_id, now)
        if math.isinf(since) and state.is_running():
            since = self._since[flow_run_id] = now
        return None if math.isinf(since) else max(now - since, 0.0)


def _taken_at(client: SyncPrefectClient, *, flow_run_id: UUID) -> float | None:
    """Return the monotonic time at which a worker took a Pending flow run. Return inf while it waits for a machine."""
    run = client.read_flow_run(flow_run_id)
    if run.state is None or not run.state.is_pending():
        return None
    if run.infrastructure_pid:
        pool = client.read_work_pool(run.work_pool_name) if run.work_pool_name else None
        if pool is None or pool.type != "process":
            return math.inf
    return time.monotonic() - _pending_for(run).total_seconds()


def _pending_for(run: FlowRun) -> timedelta:
    """Return for how long a flow run has been Pending, by the server's clock, which may differ from this machine's."""
    if run.state is None or not run.state.is_pending() or run.expected_start_time is None:
        return timedelta()
    return run.estimated_start_time_delta - (run.state.timestamp - run.expected_start_time)


def why_refused(run: FlowRun) -> str | None:
    """Return why a worker could not create the process or job of a crashed flow run.

    Before a flow run begins, a worker records the process or job that it created. Return None if there is such a
    record.
    """
    if run.state is None or not run.state.is_crashed() or run.run_count or run.infrastructure_pid:
        return None
    said = " ".join((run.state.message or "no reason is given").split())
    return f"the pool {run.work_pool_name} could not start it: {said[:_SAID_CHARACTERS]}"
