"""`python -m benchmarks crash`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from segue.reports.console import console, show_json

_QUICK_KILLS, _KILLS = 20, 150
_MUST_BE_ZERO = ("commits_lost", "records_lost", "torn_visible")
_SHOULD_BE_ZERO = ("orphans_left", "unfinished_left", "unfinished_left_elsewhere")


def crash(
    kills: Annotated[int | None, typer.Option(min=1, help="Number of kills; 150.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is killed when and in which order.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="20 kills unless given, in a folder alone.")] = False,
    endpoint_url: Annotated[str | None, typer.Option(help="S3 to use; without, moto's server here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Kill trainers and their writers at named operations and at random, check the store after each kill, and continue.

    Exit code 0: no commit was lost, no incomplete checkpoint was ever visible, and every run ended with the weights of
    an uninterrupted run. 1: at least one check failed.
    """
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    from benchmarks.crash.places import LOCAL
    from benchmarks.crash.rounds import Options, measure, passed

    number = kills or (_QUICK_KILLS if quick else _KILLS)
    options = Options(kills=number, seed=seed, endpoint_url=endpoint_url)
    if quick:
        options = Options(kills=number, seed=seed, places=(LOCAL,))
    leave_as_on_ctrl_c()
    with progress() as say:
        report = measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console)
    if not passed(report):
        raise typer.Exit(1)


def show(report: Mapping[str, Any], to: Console) -> None:
    """Print the number of kills of each type, and the results of the runs."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("killed at", no_wrap=True)
    table.add_column("kills", justify="right")
    for key, value in report.items():
        if key.startswith("kills_at_"):
            table.add_row(key.removeprefix("kills_at_").replace("_", " "), str(value))
    table.add_row("all", str(report["kills"]), style="bold")
    to.print(table)
    for name in (*_MUST_BE_ZERO, *_SHOULD_BE_ZERO):
        style = None if not report[name] else "red" if name in _MUST_BE_ZERO else "yellow"
        to.print(f"{name.replace('_', ' '):>25}  {report[name]}", style=style)
    to.print(
        f"{report['runs']} runs of {report['steps']} steps, {report['attempts']} attempts, "
        f"{report['commits']} commits; resumes: {report['resumes_exact']} exact, "
        f"{report['resumes_unverified']} unverified, {report['resumes_broken']} broken; "
        f"stores: {report['stores']}; {report['seconds']:.0f} s",
        markup=False,
    )
    same = "identical to" if report["final_identical"] else f"DIFFERENT ({report['different_runs']}) from"
    to.print(f"final weights {same} those of the uninterrupted run", markup=False)
    for problem in report["problems"]:
        to.print(problem, markup=False, style="red")
