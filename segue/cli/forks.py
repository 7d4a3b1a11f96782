"""`segue run --from RUN[@STEP]`: a run that begins with a checkpoint of another run."""

from __future__ import annotations

from typing import Literal

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from segue.errors import COMMAND_LINE, SpecError
from segue.interop.fork import fork_run
from segue.reports.console import errors
from segue.spec import RunSpec

Source = tuple[str, int | Literal["best"] | None]
"""A run, and the step of its checkpoint; None: the newest."""


def parse_source(text: str) -> Source:
    """The run and the step in RUN, RUN@STEP or RUN@best.

    Raises:
        SpecError: it is none of them.
    """
    run, separator, step = text.partition("@")
    if run and not separator:
        return run, None
    if run and step == "best":
        return run, "best"
    if run and step.isascii() and step.isdigit():
        return run, int(step)
    problem = f"--from: {text!r} names no checkpoint of a run; write RUN, RUN@STEP or RUN@best"
    raise SpecError(source=COMMAND_LINE, problems=(problem,))


def begin_with(spec: RunSpec, source: Source, reset: list[str]) -> None:
    """Make the checkpoint the run's first, and say so; a run that has begun with it is left alone."""
    run, step = source
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        task = bars.add_task("reading the run's log")
        report = fork_run(
            spec, run, step=step, reset=reset, progress=lambda doing: bars.update(task, description=doing)
        )
    without = f", without its {' and '.join(report.fork.reset)}" if report.fork.reset else ""
    begins = "begins" if report.is_new else "began"
    if report.as_built:
        errors.print(f"note: begins as built, {report.fork.name} has none: {', '.join(report.as_built)}", markup=False)
    errors.print(f"run {spec.run_id} {begins} with {report.fork.name}{without}", markup=False)
