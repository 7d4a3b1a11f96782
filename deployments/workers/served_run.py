"""Runs one parent in a thread of this process, instead of a process with `python -m prefect.engine`."""

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
"""Prefix of the name of a parent's thread, before the id of the flow run."""


class ServedRun:
    """A flow run of `train` in its own thread. No exception in the thread ends the process."""

    def __init__(self, flow_run_id: UUID) -> None:
        self.ended: Future[int] = Future()
        """Future of the thread's exit code.

        The exit code is 1 if the engine failed (perhaps before it set the state), and otherwise 0.
        """
        self._flow_run_id, self._ending = flow_run_id, Ending()
        # The thread is a daemon, so a parent that waits for a store or a server does not keep the process alive. With
        # this context, the thread uses the same server.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name=f"{_THREAD}{flow_run_id}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, why: Why) -> None:
        """Ask the parent to end at its next wait.

        If the run was not cancelled, its attempt continues to train.
        """
        self._ending.request(why)

    def _work(self) -> None:
        try:
            with with_clock(EndableClock(self._ending)):
                status_code = _run(self._flow_run_id)
            _settle_cancelled(self._flow_run_id)
        except BaseException:
            # Catch any exception, also SystemExit, because the end of one parent must not affect the other parents.
            log.exception("a parent ended with an exception flow_run=%s", self._flow_run_id)
            status_code = 1
        self.ended.set_result(status_code)


def name_runs() -> None:
    """Put the run id at the beginning of segue's log lines on the terminal. Repeated calls are permitted."""
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
        # The state is read instead of the result. If a parent has a failed state, this is not an error of this process.
        run_flow(train, flow_run=flow_run, error_logger=logger, return_type="state")
    except (Abort, Pause, EndedError) as error:
        log.info("parent ended by prefect flow_run=%s reason=%s", flow_run_id, type(error).__name__)
    return 0


def _settle_cancelled(flow_run_id: UUID) -> None:
    """If a parent was cancelled before it began, set its state to Cancelled, as a worker does for a process."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state
        if state is not None and state.is_cancelling():
            client.set_flow_run_state(flow_run_id, Cancelled(message="cancelled before it began"), force=True)
