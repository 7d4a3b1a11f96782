"""One parent in a thread of this process: what `python -m prefect.engine` is for a parent with its own process."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Abort, Pause
from prefect.flow_engine import load_flow_run, run_flow
from prefect.logging.loggers import flow_run_logger
from prefect.states import Cancelled

from segue.controller.ending import EndableClock, EndedError, Ending, Why
from segue.flows.train import train
from segue.prefect.parent_clock import with_clock

log = logging.getLogger(__name__)

_THREAD = "segue-served-"
"""A parent's thread is named this and the flow run."""


class ServedRun:
    """A flow run of `train` in its own thread. Whatever happens in it, the thread ends and the process continues."""

    def __init__(self, flow_run_id: UUID) -> None:
        self.ended: Future[int] = Future()
        """Done when the thread has ended, with 0, or with 1 if the engine failed: it may not have set the state."""
        self._flow_run_id, self._ending = flow_run_id, Ending()
        # A daemon: a parent that waits for a store or a server that is away does not hold the process up.
        # With this context it talks to the same server.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name=f"{_THREAD}{flow_run_id}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, why: Why) -> None:
        """Ask the parent to end at its next wait. Its attempt trains on, unless the run was cancelled."""
        self._ending.request(why)

    def _work(self) -> None:
        try:
            with with_clock(EndableClock(self._ending)):
                status_code = _run(self._flow_run_id)
            _settle_cancelled(self._flow_run_id)
        except BaseException:
            # Any exception, also SystemExit: the end of one parent must not affect the others.
            log.exception("parent ended by an exception flow_run=%s", self._flow_run_id)
            status_code = 1
        self.ended.set_result(status_code)


def name_runs() -> None:
    """Begin segue's log lines on the terminal with the run that they belong to. May be called again."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_named)


def _named(record: logging.LogRecord) -> bool:
    thread = record.threadName or ""
    prefix = f"run={thread.removeprefix(_THREAD)} "
    is_of_a_run = thread.startswith(_THREAD) and record.name.startswith("segue.")
    if is_of_a_run and not str(record.msg).startswith(prefix):  # Each handler gets the same record.
        record.msg = prefix + str(record.msg)
    return True


def _run(flow_run_id: UUID) -> int:
    flow_run = load_flow_run(flow_run_id)
    threading.current_thread().name = f"{_THREAD}{flow_run.name}".replace("%", "")
    logger: Any = flow_run_logger(flow_run=flow_run)
    try:
        # The state, and not the result: a parent that returns a failed state is no error of this process.
        run_flow(train, flow_run=flow_run, error_logger=logger, return_type="state")
    except (Abort, Pause, EndedError) as error:
        log.info("parent ended by prefect flow_run=%s reason=%s", flow_run_id, type(error).__name__)
    return 0


def _settle_cancelled(flow_run_id: UUID) -> None:
    """Conclude the cancellation of a parent that ended before it had begun; for a process, a worker does this."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state
        if state is not None and state.is_cancelling():
            client.set_flow_run_state(flow_run_id, Cancelled(message="cancelled before it began"), force=True)
