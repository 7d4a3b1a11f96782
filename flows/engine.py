"""The Prefect engine of a segment, with its trainer started beside it: `python -m segue.flows.engine`.

The command of the deployments that train. Prefect and torch are then imported at the same time.
"""

from __future__ import annotations

import runpy

from segue.launch.early import start_early

if __name__ == "__main__":
    start_early()
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
