"""Runs the Prefect engine of a segment and, in parallel, starts the trainer: `python -m segue.flows.prefect_engine`.

The deployments that train use this command, so that Prefect and torch are imported in parallel. With `--wait`, the
process imports Prefect and torch before it has a flow run. Later, the worker that started the process sends a flow run
on standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys

from segue.launch.early import start_early
from segue.process import FLOW_RUN_VARIABLE, set_shown_variable

WAIT_OPTION = "--wait"


def main() -> None:
    """Run the flow run that the environment names or, with `--wait`, the flow run that standard input names."""
    start_early()
    if sys.argv[1:] == [WAIT_OPTION] and not _take_flow_run():
        return
    # The import is not at the top, because the trainer is started first.
    importlib.import_module("segue.prefect.refused_requests").repeat_refused_requests()
    sys.argv[1:] = []
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _take_flow_run() -> bool:
    """Import the modules of a segment. After the import, read the variables of a flow run from standard input.

    If the worker has ended, return False.
    """
    # Ctrl-C on a terminal reaches the whole process group. This process has nothing to save, so it ends at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in ("prefect.flow_engine", "segue.flows.segment", "segue.prefect.refused_requests"):
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return False
    variables = json.loads(line)
    set_shown_variable(FLOW_RUN_VARIABLE, variables.pop(FLOW_RUN_VARIABLE))
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return True


if __name__ == "__main__":
    main()
