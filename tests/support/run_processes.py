"""The processes of flow runs, found by their environment."""

from __future__ import annotations

from contextlib import suppress

import psutil
from segue.deployments.process.stack import LocalStack


def processes_of_runs(stack: LocalStack) -> list[psutil.Process]:
    """Every process of a flow run of this stack: engines, trainers, writers, and what they started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            is_ours = environment.get("PREFECT_API_URL") == stack.api_url and "PREFECT__FLOW_RUN_ID" in environment
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
