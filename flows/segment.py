"""Defines the flow `segment`, which the pools run: an attempt, or a standby that waits for an attempt."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from segue.clock import SystemClock
from segue.controller.segment import NoticeRelay, run_attempt, run_standby
from segue.controller.standbys.agent import Left
from segue.launch.early import discard_early
from segue.launch.output import survive_broken_output
from segue.prefect.api import is_cancelled, tagged, wait_for_api
from segue.prefect.messenger import Messenger
from segue.prefect.state_words import Word, is_by_a_person, state_of_attempt, state_with
from segue.prefect.ui.quiet_logs import quieten
from segue.records import SegmentPlan, SegmentReport
from segue.spec import RunSpec

_API_SECONDS = 120.0
"""Longest time in seconds for which an ended segment, whose report is in the log, waits for the Prefect API."""


@flow(name="segment", retries=0, validate_parameters=True, persist_result=False)
def segment(
    spec: RunSpec, plan: SegmentPlan | None = None, standby: str | None = None, parent: str | None = None
) -> State[Any]:
    """Train one attempt of a run on this machine. The returned state and the run's log show how the attempt ended.

    With `standby` instead of `plan`, the flow is a standby. While on-demand trains, the flow waits until the run's log
    contains a plan for it, or until the standby is no longer needed. `parent` is the parent's flow run: if the parent
    is cancelled, this flow run ends too.
    """
    survive_broken_output()
    quieten()
    relay, logger = NoticeRelay(), get_run_logger()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        relay.give(signal.Signals(signum))

    # The handler is set inside the flow body, to replace Prefect's handler, which would end this flow at once.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
    cancellation = _Cancellation(relay, [str(flow_run.id), parent])
    try:
        facts: dict[str, Any] = {
            "relay": relay,
            "requests": cancellation,
            "clock": SystemClock(),
            "on_line": lambda line: logger.log(line.level, line.text),
            "flow_run_id": str(flow_run.id) if flow_run.id else None,
        }
        if plan is not None:
            outcome: Any = run_attempt(spec, plan, **facts)
        elif standby is not None:
            outcome = run_standby(spec, standby, **facts)
        else:
            return Failed(message="A segment needs a plan or the name of a standby. Fix: start the flow `train`.")
    finally:
        discard_early()
        cancellation.close()
    wait_for_api(limit_seconds=_API_SECONDS)
    return tagged(flow_run.id, _state_of(outcome))


def _state_of(outcome: SegmentReport | Left | None) -> State[Any]:
    if outcome is None:
        return state_with(
            Word.FENCED, "another process holds this attempt, or may still claim it; this one changed nothing"
        )
    return _state_of_left(outcome) if isinstance(outcome, Left) else state_of_attempt(outcome)


def _state_of_left(left: Left) -> State[Any]:
    match left.how:
        case "not needed":
            return Completed(message=left.why)
        case "taken back":
            return state_with(Word.PREEMPTED, left.why)
        case "broken":
            return Failed(message=left.why)


class _Cancellation:
    """Makes a notice if this flow run or the parent's flow run is cancelled, because containers get no signal."""

    def __init__(self, relay: NoticeRelay, flow_runs: list[str | None]) -> None:
        self._relay = relay
        self._watched = [UUID(known) for known in flow_runs if known is not None and known != str(None)]
        self._messenger = Messenger()

    def look(self) -> None:
        states = [self._messenger.state(known) for known in self._watched]
        if any(state is not None and is_by_a_person(state) for state in states):
            self._relay.give()

    def was_cancelled(self) -> bool:
        return any(is_cancelled(known) for known in self._watched)

    def close(self) -> None:
        self._messenger.close()
