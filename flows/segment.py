"""Flow `segment`, run by the pools: one attempt on this machine, or a standby that waits for one."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Self

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed
from segue.tasks.prefect_orchestrator import SILENCE
from segue.tasks.segment import state_of

from segue.clock import SystemClock
from segue.controller.segment import NoticeRelay, run_attempt, run_standby
from segue.controller.standby_agent import Left
from segue.records import SegmentPlan
from segue.spec import RunSpec

_CANCEL_POLL_SECONDS = 5.0


@flow(name="segment", retries=0, validate_parameters=True, persist_result=False)
def segment(spec: RunSpec, plan: SegmentPlan | None = None, standby: str | None = None) -> State[Any]:
    """Train one attempt of a run on this machine. The state and the run's log show how it ended.

    With `standby` instead of a plan it waits, while on-demand trains, until the run's log has a plan for it or it is
    no longer needed.
    """
    relay = NoticeRelay()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        relay.give()

    # Inside the flow body, to replace Prefect's handler, which would end this flow at once.
    signal.signal(signal.SIGTERM, on_signal)
    with _Cancellation(relay) as cancellation:
        facts: dict[str, Any] = {
            "relay": relay,
            "look": cancellation.look,
            "clock": SystemClock(),
            "on_line": get_run_logger().info,
            "flow_run_id": str(flow_run.id) if flow_run.id else None,
        }
        if plan is not None:
            outcome: Any = run_attempt(spec, plan, **facts)
        elif standby is not None:
            outcome = run_standby(spec, standby, **facts)
        else:
            return Failed(message="A segment needs a plan or the name of a standby. Fix: start the flow `train`.")
    if outcome is None:
        return Crashed(name="Fenced", message="Another process holds this attempt; this one changed nothing.")
    return _state_of_left(outcome) if isinstance(outcome, Left) else state_of(outcome)


def _state_of_left(left: Left) -> State[Any]:
    match left.how:
        case "not needed":
            return Completed(message=left.why)
        case "taken back":
            return Crashed(name="Preempted", message=left.why)
        case "broken":
            return Failed(message=left.why)


class _Cancellation:
    """Checks every few seconds whether this flow run was cancelled, and forwards that as a notice."""

    def __init__(self, relay: NoticeRelay) -> None:
        self._relay, self._asked_at = relay, time.monotonic()
        self._client = get_client(sync_client=True)

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._client.__exit__(*error)

    def look(self) -> None:
        if time.monotonic() - self._asked_at > _CANCEL_POLL_SECONDS:
            self._asked_at = time.monotonic()
            if _is_being_cancelled(self._client):
                self._relay.give()


def _is_being_cancelled(client: Any) -> bool:
    """Whether this flow run was cancelled. The segment polls it, because a container gets no signal for it."""
    try:
        run = client.read_flow_run(flow_run.id)
    except (*SILENCE, ObjectNotFound):
        return False  # Prefect does not answer, or the flow run was deleted. Training needs neither.
    return run.state is not None and (run.state.is_cancelling() or run.state.is_cancelled())
