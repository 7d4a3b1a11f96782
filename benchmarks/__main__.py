"""`python -m benchmarks`: compares segue with other tools, and with the limits of this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.chaos.command import chaos
from benchmarks.common.every import every
from benchmarks.common.terminal import leave_as_on_ctrl_c, progress
from benchmarks.continuity.command import continuity
from benchmarks.crash.command import crash
from benchmarks.datacheck.command import datacheck
from benchmarks.deadline.command import deadline
from benchmarks.deadline.simulate import simulate
from benchmarks.dispatch.command import dispatch
from benchmarks.fencing.command import fencing
from benchmarks.fleet.command import fleet
from benchmarks.growth.command import growth
from benchmarks.overhead.command import overhead
from benchmarks.turnaround.command import turnaround
from benchmarks.waiting.command import waiting
from segue.errors import SegueError
from segue.reports.console import console, show_error, show_json

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_QUICK_BYTES, _QUICK_ROUNDS = 64_000_000, 2


app = typer.Typer(
    name="benchmarks",
    help="Compare segue with others and with the limits of this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def bench() -> None:
    """Compare segue with others and with the limits of this machine."""


def parse_size(text: str) -> int:
    """Convert a size such as 500MB, 64MiB or a plain number to bytes.

    Raises:
        typer.BadParameter: the text is not such a size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    if (
        found is None
        or found[2].upper() not in _UNITS
        or (size_bytes := float(found[1]) * _UNITS[found[2].upper()]) < 1
    ):
        raise typer.BadParameter(f"{text!r} is not a size. Fix: write it like 500MB or 64MiB.")
    return int(size_bytes)


app.command("all")(every)
app.command()(chaos)
app.command()(crash)
app.command()(continuity)
app.command()(datacheck)
app.command()(deadline)
app.command()(dispatch)
app.command()(fencing)
app.command()(fleet)
app.command()(growth)
app.command()(overhead)
app.command()(simulate)
app.command()(turnaround)
app.command()(waiting)


@app.command()
def checkpoint(
    size: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE", help="State size, e.g. 500MB.")] = None,
    tensors: Annotated[int, typer.Option(min=1, help="Number of tensors in the state.")] = 40,
    many_tensors: Annotated[int, typer.Option(min=0, help="Tensors in a second state; 0: no second state.")] = 10_000,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, of which medians are shown; default: 3.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Defaults for a quick look: 64 MB and 2 rounds.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Torch threads per saver; default: torch's own.")] = None,
    steps: Annotated[bool, typer.Option(help="Measure how much training steps are slowed down.")] = True,
    only: Annotated[str | None, typer.Option(help="Names to measure, separated by commas; default: all.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder on the file system to measure.")] = Path(".segue/bench"),
    endpoint_url: Annotated[str | None, typer.Option(help="S3 endpoint for uploads; default: a null server.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order within each round.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare segue's checkpoints with torch's and others', and with the limits of this machine.

    Exit code 0: all of segue's own figures were measured. 1: some were not. 2: wrong options.
    """
    # Torch takes seconds to import: wrong options are refused before that.
    from benchmarks.checkpoint.report import NAMES, Options, measure
    from benchmarks.common.tables import show

    options = Options(
        size_bytes=size or (_QUICK_BYTES if quick else Options.size_bytes),
        tensors=tensors,
        many_tensors=many_tensors,
        rounds=rounds or (_QUICK_ROUNDS if quick else Options.rounds),
        seed=seed,
        folder=folder,
        endpoint_url=endpoint_url,
        only=tuple(name.strip() for name in only.split(",")) if only else NAMES,
        threads=threads,
        steps=steps,
    )
    leave_as_on_ctrl_c()
    with progress(lines_start_with=("limits", "first save", "round", "failed")) as say:
        report = measure(options, say=say)
    if as_json:
        show_json(report)
    else:
        show(report, console)
    if report["ours_failed"]:
        raise typer.Exit(1)


def main() -> None:
    """Entry point of `python -m benchmarks`."""
    try:
        app()
    except SegueError as error:
        show_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
