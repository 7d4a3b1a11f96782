"""`python -m benchmarks fleet`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json


def fleet(
    runs: Annotated[int, typer.Option(min=1, help="Runs that are started at once.")] = 10,
    spot_slots: Annotated[int, typer.Option(min=1, help="Concurrency limit of the pool spot.")] = 3,
    on_demand_slots: Annotated[int, typer.Option(min=1, help="Concurrency limit of the pool on-demand.")] = 1,
    database: Annotated[
        str | None, typer.Option(help="URL of the Prefect server's empty PostgreSQL database; default: SQLite.")
    ] = None,
    s3: Annotated[bool, typer.Option("--s3", help="Keep the store on moto's S3, and count its requests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Start many runs with deadlines at once, on two pools whose slots the runs share, with real trainers and one
    Prefect.

    Exit code 0: all runs finished in time, and no segment was trained twice. 1: a run was late, or a segment was
    trained twice.
    """
    from benchmarks.fleet.measure import Options, measure, passed

    leave_as_on_ctrl_c()
    options = Options(
        runs=runs, spot_slots=spot_slots, on_demand_slots=on_demand_slots, database=database, counts_requests=s3
    )
    with progress() as say:
        report = measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        for key, value in report.items():
            console.print(f"{key.replace('_', ' '):>32}  {value}", markup=False)
    if not passed(report):
        raise typer.Exit(1)
