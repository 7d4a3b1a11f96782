"""`python -m benchmarks continuity`."""

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

_WIDTH_IN_FILES = 140
"""Width of the tables, in columns, if there is no terminal, so that no table is cut off."""
_LISTED = "separated by commas; all by default"


def continuity(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes: one seed, one resume point, 6 kills.")] = False,
    kinds: Annotated[str | None, typer.Option(help=f"Kinds of faults by name or part of it, {_LISTED}.")] = None,
    models: Annotated[str | None, typer.Option(help=f"Models by name (flights, digits, text), {_LISTED}.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds of each fault; 3 by default.")] = None,
    kills: Annotated[int | None, typer.Option(min=0, help="Number of real SIGKILLs; 120 by default.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes; one per core by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure the verdicts: make faulty resumes of every known kind, and clean resumes that look suspicious.

    Exit code 0: everything was measured and no clean resume was called broken. 1: a measurement failed, or a clean
    resume was called broken. Missed faults do not change the exit code, because they are the result. 2: the benchmark
    could not start with these options.
    """
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    from benchmarks.continuity import matrix as bench
    from benchmarks.continuity.recipes import MODELS

    options = bench.Options()
    if quick:
        options = bench.quick(options)
    options = replace(
        options,
        kinds=_chosen(kinds, bench.KIND_NAMES, what="kind", is_part_enough=True),
        models=_chosen(models, MODELS, what="model") or MODELS,
        seeds=seeds or options.seeds,
        kills=options.kills if kills is None else kills,
        jobs=jobs or options.jobs,
    )
    leave_as_on_ctrl_c()
    with progress() as say:
        report = bench.measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console if console.is_terminal else Console(highlight=False, width=_WIDTH_IN_FILES))
    if not bench.passed(report):
        raise typer.Exit(1)


def show(report: Mapping[str, Any], to: Console) -> None:
    """Print a row for each kind and each control, and their totals."""
    to.print(_kinds_table(report["by_kind"]))
    to.print(_controls_table(report["by_control"]))
    to.print(_axes_table(report))
    foregone = report["foregone"]
    to.print(
        f"faulty: {report['kinds']} kinds; found {_percent(report['detected_share'])}, "
        f"named right {_percent(report['named_share'])}, with advice {_percent(report['advised_share'])}; "
        f"{foregone['kinds']} more that a component's own digest shows: found {_percent(foregone['detected_share'])}"
    )
    if report["levels"]:
        to.print(_levels_table(report["levels"]))
    to.print(
        f"injected: {report['trials']} resumes; found before the first step "
        f"{_percent(report['detected_before_first_step_share'])} of kinds and "
        f"{_percent(report['detected_before_first_step_trials_share'])} of resumes"
    )
    to.print(
        f"clean: {report['clean']} resumes, {report['false_alarms']} false alarms; {report['sigkills']} SIGKILLs",
        style="red" if report["false_alarms"] else None,
    )
    to.print(
        f"smoothness rules on the same resumes: found {_percent(report['smoothness_detected_share'])}, "
        f"false alarms on {_percent(report['smoothness_false_alarm_share'])} of clean ones"
    )
    if "step_overhead_share" in report:
        to.print(
            f"cost: {_percent(report['step_overhead_share'])} of a 20 ms step, "
            f"{report['bytes_per_step']:.0f} bytes a step"
        )
    to.print(f"{report['jobs']} processes on {report['cores']} cores, {report['seconds']:.0f} s")
    for problem in report["problems"]:
        to.print(problem, markup=False, style="red")


def _kinds_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("fault", "resumes", "found", "before\nfirst step", "latest\nstep", "named\nright", "smoothness")
    for name, row in rows.items():
        is_missed = row["trials"] and row["detected_share"] < 1
        table.add_row(
            name,
            str(row["trials"]),
            _percent(row["detected_share"]),
            _percent(row["detected_before_first_step_share"]),
            "-" if row["latest_step"] is None else str(row["latest_step"]),
            _percent(row["named_share"]),
            _percent(row["smoothness_share"]),
            style="yellow" if is_missed else None,
        )
    return table


def _axes_table(report: Mapping[str, Any]) -> Table:
    titles = (
        "kinds",
        "found",
        "named\nright",
        "with\nadvice",
        "advice\nenough",
        "at first\ncommit",
        "clean",
        "false\nalarms",
    )
    table = _table("axis", *titles)
    for name, row in report["axes"].items():
        shares = ("detected_share", "named_share", "advised_share", "enough_share", "named_at_first_commit_share")
        is_short = bool(row["missed"] or row["false_alarms"])
        table.add_row(
            name,
            str(row["kinds"]),
            *(_percent(row.get(share)) for share in shares),
            str(row["clean"]),
            str(row["false_alarms"]),
            style="yellow" if is_short else None,
        )
    return table


def _levels_table(levels: Mapping[str, Any]) -> Table:
    table = _table("unregistered state", "kinds", "found", "named\nright", "at first\ncommit")
    for name, row in levels.items():
        shares = ("detected_share", "named_share", "named_at_first_commit_share")
        table.add_row(f"as a {name}", str(row["kinds"]), *(_percent(row[share]) for share in shares))
    return table


def _controls_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("clean resume", "resumes", "as\nexpected", "smoothness\nalarms")
    for name, row in rows.items():
        if row["resumes"]:
            is_alarm = "broken" in row["verdicts"]
            shares = (_percent(row["as_expected_share"]), _percent(row["smoothness_share"]))
            table.add_row(name, str(row["resumes"]), *shares, style="red" if is_alarm else None)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4g} %"


def _chosen(
    asked: str | None, known: tuple[str, ...], *, what: str, is_part_enough: bool = False
) -> tuple[str, ...] | None:
    """Return the requested names, if all are known.

    Raises:
        typer.BadParameter: a name is unknown.
    """
    if asked is None:
        return None
    found: dict[str, None] = {}
    for word in (part.strip() for part in asked.split(",")):
        matching = [name for name in known if name == word] or [
            name for name in known if is_part_enough and word in name
        ]
        if not matching:
            raise typer.BadParameter(f"there is no {what} {word!r}; there are {', '.join(known)}.")
        found |= dict.fromkeys(matching)
    return tuple(found)
