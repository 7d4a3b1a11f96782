"""What a pool runs: one attempt, as a trainer process that this flow watches and passes notices to."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

from segue.local import account_for, is_held_by_another
from segue.records import SegmentPlan
from segue.runlog import RunLog
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.patience import patiently
from segue.trainer.assignment import Assignment
from segue.trainer.launch import Trainer, launch
from tasks.child_run import SILENCE
from tasks.segment import state_of

_POLL_SECONDS = 0.2
_CANCEL_POLL_SECONDS = 5.0


@flow(name="segment", retries=0, validate_parameters=True, persist_result=False)
def segment(spec: RunSpec, plan: SegmentPlan) -> State[Any]:
    """Run one attempt of a run on the machine this is on; the outcome is in the run's log and in the state."""
    logger = get_run_logger()
    relay = _NoticeRelay()
    # Inside the flow body: Prefect puts its own handler in place before, which would end this flow at once.
    signal.signal(signal.SIGTERM, relay.on_signal)
    assignment = Assignment(spec=spec, plan=plan, flow_run_id=str(flow_run.id) if flow_run.id else None)
    trainer = launch(assignment, on_line=logger.info)
    relay.attach(trainer)
    exit_code = _wait(trainer, relay)
    runlog = patiently(RunLog(open_store(spec.store), spec.run_id).reload, what="log")
    if is_held_by_another(runlog, plan, exit_code=exit_code):
        return Crashed(name="Fenced", message="another process has this attempt; this one touched nothing")
    return state_of(patiently(lambda: account_for(runlog, plan, exit_code=exit_code), what="report"))


class _NoticeRelay:
    """Passes SIGTERM on to the trainer, also one that came before there was a trainer."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._given = False

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


def _wait(trainer: Trainer, relay: _NoticeRelay) -> int | None:
    asked_at = time.monotonic()
    with get_client(sync_client=True) as client:
        while (code := trainer.poll()) is None:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() - asked_at > _CANCEL_POLL_SECONDS:
                asked_at = time.monotonic()
                if _is_being_cancelled(client):
                    relay.give()
    trainer.wait()
    return code


def _is_being_cancelled(client: Any) -> bool:
    """Whether someone cancelled this flow run: in a container no signal tells it, so the segment has to ask."""
    try:
        run = client.read_flow_run(flow_run.id)
    except (*SILENCE, ObjectNotFound):
        return False  # Prefect is away, or someone deleted the flow run; training does not need it.
    return run.state is not None and (run.state.is_cancelling() or run.state.is_cancelled())
