"""The processes of flow runs, found by their environment."""

from __future__ import annotations

import time
from contextlib import suppress
from uuid import UUID

import psutil

from segue.deployments.local_stack.stack import LocalStack
from segue.process import FLOW_RUN_VARIABLE

LEFT_WITHIN_SECONDS = 60.0

NO_RUN = str(UUID(int=0))
"""What processes show that wait for a flow run."""


def flow_run_of(process: psutil.Process) -> str | None:
    """The flow run that a process belongs to; None for any other process."""
    return process.environ().get(FLOW_RUN_VARIABLE)


def processes_of_runs(stack: LocalStack) -> list[psutil.Process]:
    """Every process of a flow run of this stack: engines, trainers, writers, and what they started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            is_ours = environment.get("PREFECT_API_URL") == stack.api_url
            has_run = environment.get(FLOW_RUN_VARIABLE, NO_RUN) != NO_RUN
            if is_ours and has_run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_for_processes_of_runs(stack: LocalStack) -> None:
    """Wait until no process of a flow run of this stack is left; fails after a minute, with their commands."""
    give_up_at = time.monotonic() + LEFT_WITHIN_SECONDS
    while left := processes_of_runs(stack):
        assert time.monotonic() < give_up_at, [" ".join(process.cmdline()) for process in left]
        time.sleep(0.5)
