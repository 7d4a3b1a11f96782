"""The Prefect engine of a segment, with its trainer started beside it: `python -m segue.flows.prefect_engine`.

The command of the deployments that train. Prefect and torch are then imported at the same time. With `--wait` both are
imported before there is a flow run; a worker that starts segments this way gives the flow run to standard input.
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
    """Run the flow run that the environment names; with `--wait` the one that standard input names."""
    start_early()
    if sys.argv[1:] == [WAIT_OPTION] and not _take_flow_run():
        return
    # Not at the top: the trainer is started first.
    importlib.import_module("segue.prefect.refused_requests").repeat_refused_requests()
    sys.argv[1:] = []
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _take_flow_run() -> bool:
    """Import what a segment needs, then wait for the variables of a flow run; False when the worker has ended."""
    # Ctrl-C on a terminal reaches the whole group; there is nothing here to save.
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
