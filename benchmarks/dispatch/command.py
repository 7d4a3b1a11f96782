"""`python -m benchmarks dispatch`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json

MOST_MEDIANS = 2.0
"""Largest permitted ratio of the slowest of a hundred starts to the median."""


def dispatch(
    count: Annotated[int, typer.Option(min=1, help="Flow runs to start.")] = 300,
    busy_loops: Annotated[int, typer.Option(min=0, help="Processes that keep the machine busy meanwhile.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the start of flow runs on a local Prefect and its workers: refused requests, and seconds to a process.

    Exit code 0: no request was refused, and the 99th percentile is at most twice the median. 1: one of these figures is
    higher.
    """
    from benchmarks.dispatch.measure import measure

    leave_as_on_ctrl_c()
    with progress() as say:
        found = measure(count, busy_loops=busy_loops, say=say)
    if as_json:
        show_json(found)
    else:
        for name, value in found.items():
            console.print(f"{name.replace('_', ' '):>32}  {value}", markup=False)
    if found["requests_refused"] or found["start_p99_seconds"] > MOST_MEDIANS * found["start_median_seconds"]:
        raise typer.Exit(1)
