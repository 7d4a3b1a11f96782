"""What a pool runs: one attempt, as a trainer process that this flow watches and passes notices to."""

from __future__ import annotations

import signal
import time
from functools import partial
from types import FrameType
from typing import Any, Self

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed
from segue.tasks.child_run import SILENCE
from segue.tasks.segment import state_of

from segue.clock import SystemClock
from segue.controller.local_run import account_for, is_held_by_another
from segue.controller.standby_agent import Left, StandbyAgent, Taken
from segue.launch.assignment import Assignment
from segue.launch.launcher import Trainer, launch, launch_standby
from segue.records import SegmentPlan
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.retry import patiently

_POLL_SECONDS = 0.2
_CANCEL_POLL_SECONDS = 5.0


@flow(name="segment", retries=0, validate_parameters=True, persist_result=False)
def segment(spec: RunSpec, plan: SegmentPlan | None = None, standby: str | None = None) -> State[Any]:
    """Run one attempt of a run on the machine this is on; the outcome is in the run's log and in the state.

    With `standby` instead of a plan it waits, while on-demand works, until the run's log has a plan for it or it is not
    needed.
    """
    logger = get_run_logger()
    relay = _NoticeRelay()
    # Inside the flow body: Prefect puts its own handler in place before, which would end this flow at once.
    signal.signal(signal.SIGTERM, relay.on_signal)
    flow_run_id = str(flow_run.id) if flow_run.id else None
    trainer: Trainer
    if plan is not None:
        trainer = launch(Assignment(spec=spec, plan=plan, flow_run_id=flow_run_id), on_line=logger.info)
    elif standby is not None:
        waited = _wait_as_standby(spec, standby, relay, flow_run_id=flow_run_id)
        if isinstance(waited, Left):
            return _state_of_left(waited)
        plan, trainer = waited.plan, waited.trainer
    else:
        return Failed(message="a segment needs a plan, or the name of the standby it is; the parent flow gives it one")
    relay.attach(trainer)
    exit_code = _wait(trainer, relay)
    runlog = patiently(RunLog(open_store(spec.store), spec.run_id).reload, what="log")
    if is_held_by_another(runlog, plan, exit_code=exit_code):
        return Crashed(name="Fenced", message="another process has this attempt; this one touched nothing")
    return state_of(patiently(lambda: account_for(runlog, plan, exit_code=exit_code), what="report"))


def _wait_as_standby(spec: RunSpec, standby: str, relay: _NoticeRelay, *, flow_run_id: str | None) -> Taken | Left:
    clock = SystemClock()
    runlog = patiently(RunLog(open_store(spec.store), spec.run_id, clock=clock).reload, what="log")
    on_line = get_run_logger().info
    boot = partial(launch_standby, spec, on_line=on_line)
    servant = StandbyAgent(runlog, spec, standby, boot=boot, clock=clock, flow_run_id=flow_run_id)
    with _Cancellation(relay) as cancellation:
        return servant.serve(cancellation.why_to_leave)


def _state_of_left(left: Left) -> State[Any]:
    match left.how:
        case "not needed":
            return Completed(message=left.why)
        case "taken back":
            return Crashed(name="Preempted", message=left.why)
        case "broken":
            return Failed(message=left.why)


class _NoticeRelay:
    """Passes SIGTERM on to the trainer, also one that came before there was a trainer."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._given = False

    @property
    def is_given(self) -> bool:
        return self._given

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.give()

    def give(self) -> None:
        self._given = True
        if self._trainer is not None:
            self._trainer.give_notice()

    def attach(self, trainer: Trainer) -> None:
        self._trainer = trainer
        if self._given:
            trainer.give_notice()


class _Cancellation:
    """Looks, now and then, for someone who cancelled this flow run, and passes that on as a notice."""

    def __init__(self, relay: _NoticeRelay) -> None:
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

    def why_to_leave(self) -> str | None:
        """Why a standby has to go; None while nobody says so."""
        self.look()
        return "the standby was taken back" if self._relay.is_given else None


def _wait(trainer: Trainer, relay: _NoticeRelay) -> int | None:
    with _Cancellation(relay) as cancellation:
        while (code := trainer.poll()) is None:
            time.sleep(_POLL_SECONDS)
            cancellation.look()
    trainer.wait()
    return code


def _is_being_cancelled(client: Any) -> bool:
    """Whether someone cancelled this flow run: in a container no signal tells it, so the segment has to ask."""
    try:
        run = client.read_flow_run(flow_run.id)
    except (*SILENCE, ObjectNotFound):
        return False  # Prefect is away, or someone deleted the flow run; training does not need it.
    return run.state is not None and (run.state.is_cancelling() or run.state.is_cancelled())
