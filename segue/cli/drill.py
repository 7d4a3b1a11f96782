"""`segue drill`: kill a training, resume it, and compare the result with an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segue.cli.options import Json, RankCount, Workload, with_workload
from segue.errors import COMMAND_LINE, DrillFailedError
from segue.pool_prices import PoolSpec
from segue.reports.console import console, errors, show_json
from segue.spec import BudgetSpec, RunSpec, read_toml

if TYPE_CHECKING:
    from segue.resume_drill import DrillReport


def drill(
    workload: Workload = None,
    config: Annotated[
        Path | None, typer.Option(help=r"TOML run spec; its \[config] table is the argument of the recipe's function.")
    ] = None,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps of each of the two runs.")] = 90,
    ranks: RankCount = None,
    kills: Annotated[int, typer.Option(min=1, help="Number of SIGKILLs in the second run.")] = 2,
    as_json: Json = False,
) -> None:
    """Train a recipe or a program twice, once with kills and resumes, and compare the two final states bit for bit.

    Exit code 0: every resume verified and the final states identical. 3: a resume is broken or the states differ.
    1: not proven, or it fails without a kill. 2: the drill could not start as asked.
    """
    fields = with_workload(read_toml(config) if config else {}, workload) | {"run_id": "drill", "steps": steps}
    if ranks is not None:
        fields["ranks"] = ranks
    spec = RunSpec.parse(fields, source=str(config) if config else COMMAND_LINE)
    # It buys nothing: neither a budget nor the user's source of prices is any of its business.
    spec = spec.model_copy(update={"pools": PoolSpec(), "budget": BudgetSpec()})
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    from segue.resume_drill import drill_spec

    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=steps) for name in ("reference", "killed")}

        def show(name: str, committed: int) -> None:
            bars.update(tasks[name], completed=committed)

        try:
            report = drill_spec(spec, kills=kills, progress=show)
        except DrillFailedError as error:
            _show_traceback(error.traceback)
            raise
    if report.failure is not None:
        _show_traceback(report.failure.traceback)
    if as_json:
        show_json(report.model_dump(mode="json"))
    else:
        _show(report)
    if not report.passed:
        broken = report.verdict == "broken" or not report.identical
        raise typer.Exit(3 if broken else 1)


def _show(report: DrillReport) -> None:
    for number, verdict in enumerate(report.verdicts, 1):
        console.print(f"resume {number}: {verdict.sentence}", markup=False, soft_wrap=True)
    if not report.kills:
        # Commits, witness steps and the kill need some room.
        outcome = "the run had ended before it could be killed, so no resume was tried. Fix: raise --steps"
        console.print(f"not proven: {outcome}.", markup=False, soft_wrap=True)
        return
    if report.ended != "finished":
        outcome = f"the killed run did not finish ({report.ended.rstrip('.')})"
    elif report.identical:
        outcome = "the final state is identical to that of the uninterrupted run"
    else:
        outcome = f"the final state differs from that of the uninterrupted run in {', '.join(report.differing)}"
    console.print(f"after {report.kills} kills {outcome}; verdict: {report.verdict}", markup=False, soft_wrap=True)


def _show_traceback(text: str) -> None:
    if text:
        errors.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
