"""`python -m benchmarks deadline`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from benchmarks.deadline.paper import PAPER
from segue.policy.rules.view import Knowledge
from segue.reports.console import console, show_json

KNOWLEDGE: dict[str, Knowledge] = {name: name for name in get_args(Knowledge)}
_COLUMNS = {
    "policy": None,
    "x on-\ndemand": "cost_vs_on_demand",
    "x opti-\nmum": "cost_vs_optimum",
    "with\nhand-over": "cost_vs_optimum_with_handover",
    "lost\nwork": "cost_vs_optimum_with_lost_work",
    "p95": "p95_vs_optimum",
    "x UP": "vs_uniform_progress",
    "spot\nhours": "spot_hours",
    "on-demand": "on_demand_hours",
    "misses": "misses",
}


def deadline(
    *,
    traces: Annotated[Path | None, typer.Option(help="Folder of availability traces, or one file.")] = None,
    yardstick: Annotated[
        str | None,
        typer.Option(help="PLAN over several pools: on a published artifact (skynomad), or on traces (zones)."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the converted artifact or the traces, for --yardstick.")
    ] = None,
    knowledge: Annotated[
        str, typer.Option(help="What plan and slack_age observe of spot while on on-demand: free, sentinel or none.")
    ] = "free",
    handover: Annotated[
        bool, typer.Option("--handover", help="Keep on-demand running while the replacement spot machine boots.")
    ] = False,
    starts: Annotated[int, typer.Option(min=1, help="Number of random starts for each trace and setting.")] = 60,
    adversarial: Annotated[
        int, typer.Option(min=0, help="Number of runs against an adversary that knows the run.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starts and of the adversary.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one per core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Replay availability traces against every policy with the safety clamp, and compare with the least possible cost.

    With --yardstick skynomad, PLAN over several pools is compared with the costs of a published artifact. With
    --yardstick zones, PLAN is compared with the least possible cost on one zone alone; 2 starts are a good number.

    Exit code 0: no run was late. 1: a run was late that could have met its deadline, or a published cost of the
    yardstick is not reproduced. 2: the traces cannot be read.
    """
    if yardstick is not None:
        _beside(yardstick, data, starts=starts, jobs=jobs, as_json=as_json)
        return
    if traces is None:
        raise typer.BadParameter("give the folder of the traces.", param_hint="--traces")
    from benchmarks.deadline import policies as bench

    if knowledge not in KNOWLEDGE:
        raise typer.BadParameter(f"{knowledge!r} is none of {', '.join(KNOWLEDGE)}.", param_hint="--knowledge")
    leave_as_on_ctrl_c()
    options = bench.Options(traces, KNOWLEDGE[knowledge], handover, starts, adversarial, seed)
    if jobs is not None:
        options = replace(options, jobs=jobs)
    with progress() as say:
        report = bench.measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console)
    rows = [row for row in report.values() if isinstance(row, dict)]
    bad = [report["adversarial_hopeless_unsaid"], *(row["misses"] + row["misses_with_lost_work"] for row in rows)]
    if any(bad) or any(report[name] for name in report if name.startswith("adversarial_misses")):
        raise typer.Exit(1)


def _beside(yardstick: str, data: Path | None, *, starts: int, jobs: int | None, as_json: bool) -> None:
    from benchmarks.deadline.skynomad import report as skynomad
    from benchmarks.deadline.skynomad import zones

    if yardstick not in ("skynomad", "zones"):
        raise typer.BadParameter(f"{yardstick!r} is neither skynomad nor zones.", param_hint="--yardstick")
    if data is None:
        raise typer.BadParameter("give the folder with the artifact's data, or with the traces.", param_hint="--data")
    leave_as_on_ctrl_c()
    jobs = jobs or os.cpu_count() or 1
    with progress() as say:
        if yardstick == "zones":
            report = zones.measure(data, starts=starts, jobs=jobs, say=say)
        else:
            report = skynomad.measure(data, jobs=jobs, say=say)
    if as_json:
        show_json(report)
    else:
        (_show_zones if yardstick == "zones" else _show_beside)(report, console)
    if report.get("not_reproduced") or report["late"]:
        raise typer.Exit(1)


def _table(report: Mapping[str, Any], first: str, *others: str) -> Table:
    """One row for each object of a report, with its name in the first column."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in (first, *others):
        table.add_column(name, justify="left" if name == first else "right")
    for name, row in report.items():
        if isinstance(row, dict):
            table.add_row(name, *(str(value) for value in row.values()))
    return table


def _show_zones(report: Mapping[str, Any], to: Console) -> None:
    """Print one row per group of zones."""
    to.print(_table(report, "zones", "runs", "x best zone", "x mean zone"))
    to.print(
        "PLAN over the zones, divided by the least cost in hindsight on one zone alone: on the best zone, and the mean "
        f"of the zones; late: {report['late']} of {report['runs']} runs"
    )


def _show_beside(report: Mapping[str, Any], to: Console) -> None:
    """Print one row per point of the published sweeps, and the cross-check."""
    to.print(_table(report, "point", "cases", "their optimum, $", "PLAN", "SkyNomad", "UP(S)", "least"))
    to.print(
        "ratios of totals over the optimum that the artifact publishes, without the tick in which the work ends, as "
        "published; least: the exact least cost"
    )
    to.print(
        f"PLAN was late in {report['late']} of {report['cases']} cases, and dearer than SkyNomad at "
        f"{report['points_dearer_than_skynomad']} points; UP(S), run here, differs from what was published by more "
        f"than a cent in {report['not_reproduced']} cases"
    )


def show(report: Mapping[str, Any], to: Console) -> None:
    """Print one row per policy, and what was run."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    policies = {name: row for name, row in report.items() if isinstance(row, dict)}
    for name, row in policies.items():
        table.add_row(name, *(str(row[key]) for key in _COLUMNS.values() if key is not None))
    to.print(table)
    with_handover = "with" if report["handover"] else "without"
    to.print(
        f"{report['runs']} runs per policy on {report['traces']} traces; plan and slack_age with {report['knowledge']} "
        f"knowledge, {with_handover} hand-over; x UP: all costs against Uniform Progress"
    )
    misses = sum(row["misses_with_lost_work"] for row in policies.values())
    lost = report["lost_by_a_death_seconds"]
    to.print(f"with lost work: x optimum if each death loses up to {lost:g} s of work; {misses} misses")
    to.print(
        f"against an adversary: {report['adversarial_misses']} misses in {report['adversarial_runs']} runs; "
        f"{report['adversarial_hopeless']} deadlines could not be met and were reported at once"
    )
    for name in [name for name in report if name.startswith("adversarial_runs_starts_")]:
        misses, factor = report[name.replace("runs", "misses")], name.rpartition("_")[2]
        to.print(
            f"with starts that take {factor} times as long as the run expects: {misses} misses in {report[name]} runs"
        )
    to.print(
        f"simulated on one core: {report['runs_per_second_uniform_progress']:.0f} runs of 60 hours per second of "
        f"uniform_progress, {report['runs_per_second_plan']:.0f} of plan"
    )
    for name, (on_demand, spot) in PAPER.items():
        if f"paper_{name}_spot_hours" in report:
            own = f"{report[f'paper_{name}_on_demand_hours']} / {report[f'paper_{name}_spot_hours']}"
            to.print(f"{name}: {own} hours of work on on-demand / spot; in the paper {on_demand} / {spot}")
    for trace, cost in policies["plan"]["by_trace"].items():
        to.print(f"plan on {trace}: {cost} x optimum", markup=False)
