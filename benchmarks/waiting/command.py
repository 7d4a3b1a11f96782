"""`python -m benchmarks waiting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json


def waiting(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter waits, and no S3.")] = False,
    latency_ms: Annotated[float, typer.Option(min=0, help="Round trip of a remote store in milliseconds.")] = 20.0,
    served: Annotated[int, typer.Option(min=0, help="Runs in one `segue serve`; 0 measures a parent alone.")] = 0,
    database: Annotated[
        str | None, typer.Option(help="With --served: URL of the Prefect server's empty PostgreSQL; default: SQLite.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the costs of a waiting parent at several lengths of its log, and the time to read a long log. With
    --served, the benchmark instead measures the memory and processor time of one process that serves this many waiting
    runs. Exit code 0: less than 2 % of a core, at most 30 requests a minute to a remote store, and 3 s for 10,000
    records; with --served, less than 2 % of a core and 20 MB a run. 1: at least one figure is higher.
    """
    if served:
        _measure_served(served, database=database, as_json=as_json)
        return
    from benchmarks.waiting.report import Options, measure, passed

    options = Options(latency_seconds=latency_ms / 1e3)
    if quick:
        options = replace(options, seconds=5.0, remote_seconds=20.0, with_s3=False)
    leave_as_on_ctrl_c()
    with progress() as say:
        report = measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console)
    if not passed(report):
        raise typer.Exit(1)


def _measure_served(runs: int, *, database: str | None, as_json: bool) -> None:
    from benchmarks.waiting.served import measure_served, served_passed

    leave_as_on_ctrl_c()
    with progress() as say:
        report = measure_served(runs, database=database, say=say)
    if as_json:
        show_json(report)
    else:
        for key, value in report.items():
            console.print(f"{key.replace('_', ' '):>24}  {value}", markup=False)
    if not served_passed(report):
        raise typer.Exit(1)


def show(report: Mapping[str, Any], to: Console) -> None:
    """Print the cost of waiting by length of the log, and the seconds of each reading."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for title in ("records", "% of a core\nin a folder", "% of a core\nremote", "requests\na minute, remote"):
        table.add_column(title, justify="right", no_wrap=True)
    for records in report["lengths"]:
        shares = (f"{100 * report[f'cpu_share_{place}_{records}']:.2f}" for place in ("local", "remote"))
        table.add_row(str(records), *shares, str(report[f"requests_a_minute_remote_{records}"]))
    to.print(table)
    for key, value in report.items():
        if key.startswith("reload_seconds_"):
            name = key.removeprefix("reload_seconds_")
            cpu = report[f"reload_cpu_seconds_{name}"]
            to.print(f"{name.replace('_', ' '):>24}  {value:.2f} s to read the longest log, {cpu:.2f} s of a core")
