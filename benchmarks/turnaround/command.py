"""`python -m benchmarks turnaround`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json

MOST_SECONDS = {
    "decision_to_first_step_seconds": 4.0,
    "orchestration_seconds": 1.5,
    "planned_end_seconds": 3.0,
    "death_to_report_seconds": 1.0,
}

_PARTS_OF_RUN = {
    "command_to_decision": "from the command to the first decision",
    "decision_to_claim": "from the decision to the claim",
    "claim_to_first_step": "from the claim to the first step",
    "to_first_step": "in all",
}
"""The parts of the start of a run with `segue run`, in order."""
_PARTS = {
    "last_step_to_report": "from the last step to the report",
    "report_to_decision": "from the report to the decision",
    "decision_to_created": "from the decision to the flow run",
    "created_to_running": "from the flow run to its first line",
    "running_to_claim": "from the first line to the claim",
    "decision_to_claim": "from the decision to the claim, same machine",
    "claim_to_first_step": "from the claim to the first new step",
}
"""The parts in order. A planned end has no flow run of its own, because a trainer waits on the same machine."""


def turnaround(
    count: Annotated[int, typer.Option(min=1, help="Turnarounds to measure: half a minute each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the time from a decision to the first new step of its segment, on a warm local pool.

    First measure the time from `segue run` to the first step of a new run, with a Prefect that the command starts and
    with a running Prefect. After the turnarounds, measure the time from the last step before a planned end to the next
    step, on the same machine, and the time from a trainer's death to its report in the log. Exit code 0: the medians
    are at most 4 s (1.5 s of it orchestration), 3 s and 1 s. 1: a median is higher.
    """
    from benchmarks.turnaround.measure import measure

    leave_as_on_ctrl_c()
    with progress() as say:
        found = measure(count, say=say)
    if as_json:
        show_json(found)
    else:
        show(found, console)
    if any(found[name] > most for name, most in MOST_SECONDS.items()):
        raise typer.Exit(1)


def show(found: Mapping[str, Any], to: Console) -> None:
    """Print the parts of a turnaround and of a planned end one below the other, and their sums."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("medians, in seconds", no_wrap=True)
    table.add_column("turnaround", justify="right")
    table.add_column("planned end", justify="right")
    for name, title in _PARTS.items():
        values = (found.get(f"{start}{name}_seconds") for start in ("", "planned_end_"))
        table.add_row(title, *("-" if value is None else f"{value:.2f}" for value in values))
    table.add_section()
    whole = (found["decision_to_first_step_seconds"], found["planned_end_seconds"])
    slowest = (found["slowest_seconds"], found["slowest_planned_end_seconds"])
    table.add_row("in all", *(f"{value:.2f}" for value in whole))
    table.add_row("slowest", *(f"{value:.2f}" for value in slowest))
    to.print(table)
    of_run = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    of_run.add_column("`segue run`, medians in seconds", no_wrap=True)
    of_run.add_column("without a Prefect", justify="right")
    of_run.add_column("with a running one", justify="right")
    for name, title in _PARTS_OF_RUN.items():
        of_run.add_row(title, *(f"{found[f'{kind}_run_{name}_seconds']:.2f}" for kind in ("cold", "warm")))
    to.print(of_run)
    to.print(
        f"{found['turnarounds']} turnarounds; orchestration {found['orchestration_seconds']} s; from a death to its "
        f"report {found['death_to_report_seconds']} s, slowest {found['slowest_death_to_report_seconds']} s",
        markup=False,
    )
