"""`python -m benchmarks turnaround`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json

MOST_SECONDS = {
    "decision_to_first_step_seconds": 4.0,
    "orchestration_seconds": 1.5,
    "planned_end_seconds": 3.0,
    "death_to_report_seconds": 1.0,
}


def turnaround(
    count: Annotated[int, typer.Option(min=1, help="Turnarounds to measure: half a minute each.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the time from a decision to the first new step of its segment, on a warm local pool.

    Then measure the time from the last step before a planned end to the next step, on the same machine, and the time
    from a trainer's death to its report in the log. Exit code 0: the medians are at most 4 s (1.5 s of it
    orchestration), 3 s and 1 s. 1: a median is higher.
    """
    from benchmarks.turnaround.measure import measure

    leave_as_on_ctrl_c()
    with progress() as say:
        found = measure(count, say=say)
    if as_json:
        show_json(found)
    else:
        for name, value in found.items():
            console.print(f"{name.replace('_', ' '):>32}  {value}", markup=False)
    if any(found[name] > most for name, most in MOST_SECONDS.items()):
        raise typer.Exit(1)
