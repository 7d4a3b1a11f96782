"""`segue drill`: disturb a training, resume it, and compare the result with an undisturbed run."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import Json, RankCount, Workload, read_settings, writing
from segue.clock import SystemClock
from segue.errors import DrillFailedError
from segue.reports.console import StepLines, console, errors, progress, show_json
from segue.spec import RunSpec, StoreSpec

if TYPE_CHECKING:
    from segue.verification.drill_report import DrillReport

_JUNIT_FILE = "segue-drill.xml"
_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_RUNS = {"reference": "reference run", "killed": "disturbed run"}


def drill(
    workload: Workload = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=r"TOML run spec with the settings of both runs; its \[config] is passed to the recipe or program."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps of each of the two runs.")] = 90,
    ranks: RankCount = None,
    kills: Annotated[int, typer.Option(min=1, help="Number of SIGKILLs in the second run.")] = 2,
    notices: Annotated[int, typer.Option(min=0, help="Number of termination notices in the second run.")] = 0,
    store: Annotated[
        str | None,
        typer.Option(help="Store for both runs, below a separate prefix; the default is a temporary folder."),
    ] = None,
    ci: Annotated[
        bool, typer.Option("--ci", help="Plain output, JUnit XML, and a summary for the job's page on GitHub.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(help=f"File for the JUnit XML; with --ci the default is {_JUNIT_FILE}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a recipe or a program twice, once with kills or notices, and compare the two final states bit for bit.

    Exit code 0: all resumes are verified and the final states are identical. 3: a resume is broken or the states
    differ. 1: the drill proves nothing, or the training fails without a kill. 2: the drill could not start with these
    options.
    """
    fields, source = read_settings(config, workload)
    fields |= {"run_id": "drill", "steps": steps}
    if ranks is not None:
        fields["ranks"] = ranks
    spec = RunSpec.parse(fields, source=source)
    own_store = spec.store.model_copy(update={"url": store}) if store is not None else None
    began = SystemClock().now()
    junit = junit or (Path(_JUNIT_FILE) if ci else None)
    if junit is not None:
        with writing(junit):  # Checked now, not after minutes of training.
            junit.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ends_cleanly(hint="The drill and its processes were stopped before the comparison."):
            report = _drilled(spec, kills, notices, store=own_store, is_plain=ci)
    except DrillFailedError as error:
        _show_traceback(error.traceback)
        _write_error(junit, error, workload=spec.workload, began=began, ci=ci)
        raise
    if report.failure is not None:
        _show_traceback(report.failure.traceback)
    if as_json:
        show_json(report.model_dump(mode="json"))
    else:
        _show(report)
    _write(report, junit, began=began)
    if ci:
        from segue.verification.junit import summary_of

        _summarize(summary_of(report))
    if not report.passed:
        raise typer.Exit(3 if report.is_broken else 1)


def _drilled(spec: RunSpec, kills: int, notices: int, *, store: StoreSpec | None, is_plain: bool) -> DrillReport:
    # Torch takes seconds to import, so all checks that work without torch were made before this line.
    from segue.resume_drill import drill_spec

    if is_plain or not errors.is_terminal:
        with ExitStack() as ending:
            lines: list[StepLines] = []

            def tell(name: str, committed: int) -> None:
                if not lines:  # A drill that is refused shows no progress.
                    plain = progress("reference run, starting", console=Console(file=sys.stderr, force_terminal=False))
                    lines.append(StepLines(ending.enter_context(plain)))
                lines[0](_RUNS[name], committed, spec.steps)

            return drill_spec(spec, kills=kills, notices=notices, progress=tell, store=store)
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks = {name: bars.add_task(name, total=spec.steps) for name in ("reference", "killed")}

        def show(name: str, committed: int) -> None:
            bars.update(tasks[name], completed=committed)

        return drill_spec(spec, kills=kills, notices=notices, progress=show, store=store)


def _show(report: DrillReport) -> None:
    for number, resume in enumerate(report.resumes, 1):
        console.print(f"resume {number}: {resume.sentence}", markup=False, soft_wrap=True)
    if report.kills or report.notices:
        after = f"after {report.disturbances} {report.outcome}; verdict: {report.verdict}"
        console.print(after, markup=False, soft_wrap=True)
    elif report.ended == "finished":
        console.print(f"not proven: {report.outcome}. Fix: {report.room}", markup=False, soft_wrap=True)
        return
    for problem in report.problems:
        text = f"{problem.sentence.rstrip('.')}. Fix: {problem.fix}"
        console.print(text, markup=False, soft_wrap=True)
    if report.kept is not None:
        console.print(f"both runs are kept in {report.kept}", markup=False, soft_wrap=True)


def _write(report: DrillReport, path: Path | None, *, began: datetime) -> None:
    if path is not None:
        from segue.verification.junit import junit_of

        with writing(path):
            path.write_bytes(junit_of(report, at=began))


def _write_error(path: Path | None, error: DrillFailedError, *, workload: str, began: datetime, ci: bool) -> None:
    fix = error.fix or "see the output of the command."
    if path is not None:
        from segue.verification.junit import junit_of_error

        seconds = (SystemClock().now() - began).total_seconds()
        with writing(path):
            path.write_bytes(junit_of_error(workload, error.why, fix=fix, at=began, seconds=seconds))
    if ci:
        from segue.verification.junit import summary_of_error

        _summarize(summary_of_error(workload, error.why, fix=fix))


def _summarize(text: str) -> None:
    """Append a text to the summary page of a GitHub Actions job, if the job has such a page."""
    named = os.environ.get(_SUMMARY_VARIABLE)
    if named:
        with writing(Path(named)), Path(named).open("a", encoding="utf-8") as page:
            page.write(text)


def _show_traceback(text: str) -> None:
    if text:
        errors.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
