"""`python -m benchmarks chaos`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.cli.options import require_prefect
from segue.reports.console import console, show_json

_SHOULD_BE_ZERO = ("late", "commits_lost", "doubled_steps", "stuck", "processes_left")


def chaos(
    minutes: Annotated[float | None, typer.Option(min=0.5, max=600, help="How long faults come; default: 10.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the schedule.")] = 0,
    schedule: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with the faults, instead of a seed's.")
    ] = None,
    lanes: Annotated[int, typer.Option(min=1, max=16, help="Runs at a time.")] = 3,
    logs: Annotated[Path | None, typer.Option(help="Folder for the logs of all processes; default: none.")] = None,
    kinds: Annotated[bool, typer.Option("--kinds", help="List the kinds of faults and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run a complete local Prefect while trainers, workers, server, stores and the API fail, and judge the runs.

    Exit code 0: every run finished in time with the weights of an undisturbed run, no commit was lost, no step was
    committed twice, and no process is stuck or left. 1: at least one of these failed. 2: wrong options.
    """
    require_prefect("bench chaos")
    from benchmarks.chaos.conduct import Options, measure, passed
    from benchmarks.chaos.faults.registry import KINDS, times
    from benchmarks.chaos.schedule import drawn, read_schedule

    if kinds:
        _show_kinds({name: (kind.what, kind.seconds) for name, kind in KINDS.items()}, console)
        return
    plan = drawn(seed=seed, minutes=minutes or 10.0, kinds=times())
    if schedule is not None:
        plan = read_schedule(schedule, kinds=times(), seed=seed)
    seconds = plan.end_seconds if minutes is None and schedule is not None else 60.0 * (minutes or 10.0)
    leave_as_on_ctrl_c()
    with progress() as say:
        report = measure(Options(schedule=plan, seconds=seconds, seed=seed, lanes=lanes, logs=logs), say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console)
    if not passed(report):
        raise typer.Exit(1)


def show(report: Mapping[str, Any], to: Console) -> None:
    """Print the number of faults of each kind, and the results of the runs."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("fault", no_wrap=True)
    table.add_column("times", justify="right")
    for kind, times in report["faults"].items():
        table.add_row(kind, str(times))
    table.add_row("all", str(report["faults_applied"]), style="bold")
    to.print(table)
    for name in _SHOULD_BE_ZERO:
        to.print(f"{name.replace('_', ' '):>16}  {report[name]}", style="red" if report[name] else None)
    to.print(
        f"{report['finished']} of {report['runs']} runs finished; {report['attempts']} attempts, "
        f"{report['commits']} commits; {report['service_restarts']} restarts of services, {report['recoveries']} "
        f"recoveries; {report['cores']} cores, load {report['load_average']}; {report['seconds']:.0f} s",
        markup=False,
    )
    same = "identical to" if report["final_identical"] else f"DIFFERENT ({report['different_runs']}) from"
    to.print(f"final weights {same} those of the undisturbed run", markup=False)
    for problem in (*report["problems"], *report["left"]):
        to.print(problem, markup=False, style="red")


def _show_kinds(kinds: Mapping[str, tuple[str, tuple[float, float]]], to: Console) -> None:
    for name, (what, (shortest, longest)) in kinds.items():
        lasts = f", {shortest:g} to {longest:g} s" if longest else ""
        to.print(f"{name:<22}{what}{lasts}", markup=False, highlight=False, soft_wrap=True)
