"""Finding processes by the environment in which they were started."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import psutil

_FLOW_RUN, _API_URL = "PREFECT__FLOW_RUN_ID", "PREFECT_API_URL"
_NO_RUN = str(UUID(int=0))
"""Flow run id in the environment of processes that wait for a flow run."""


def of_flow_run(flow_run_id: str) -> list[psutil.Process]:
    """All processes on the machine of a flow run: its engine, the trainer, and the trainer's writer."""
    return [process for process, environment in _all() if environment.get(_FLOW_RUN) == flow_run_id]


def of_flow_runs(api_url: str) -> list[psutil.Process]:
    """All processes that flow runs of the Prefect server at this address have started."""
    return [
        process
        for process, environment in _all()
        if environment.get(_API_URL) == api_url and environment.get(_FLOW_RUN, _NO_RUN) != _NO_RUN
    ]


def of_stack(api_url: str) -> list[psutil.Process]:
    """All processes that were started for the Prefect server at this address."""
    return [process for process, environment in _all() if environment.get(_API_URL) == api_url]


def in_words(processes: list[psutil.Process]) -> list[str]:
    """The command line of each process."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
    return found


def _all() -> list[tuple[psutil.Process, dict[str, str]]]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, process.environ()))
    return found
