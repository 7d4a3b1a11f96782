"""The `segue` command; only the subcommands that need Prefect or torch import them, when they run."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from segue.cli import checkpoints, curve
from segue.cli.audit import audit
from segue.cli.costs import costs
from segue.cli.doctor import doctor
from segue.cli.drill import drill
from segue.cli.init import init
from segue.cli.plan import plan
from segue.cli.pools import pools
from segue.cli.recover import recover
from segue.cli.retraining import data, models, retrain
from segue.cli.run import run
from segue.cli.serve import serve
from segue.cli.status import runs, status, stop
from segue.cli.track import track
from segue.cli.worker import worker
from segue.errors import SegueError
from segue.reports.console import console, show_error

app = typer.Typer(
    name="segue",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        console.print(f"segue {version('segue')}", markup=False)
        raise typer.Exit


@app.callback()
def segue(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train PyTorch models on interruptible spot capacity, in segments that end at a committed checkpoint."""


for command in (
    init,
    doctor,
    drill,
    plan,
    run,
    runs,
    status,
    costs,
    pools,
    audit,
    stop,
    track,
    recover,
    serve,
    worker,
):
    app.command()(command)
app.add_typer(checkpoints.app)
app.add_typer(curve.app)
app.add_typer(data.app)
app.add_typer(retrain.app)
app.add_typer(models.app)


def main() -> None:
    """Entry point of the console script; for an expected error it prints one paragraph and sets the exit code."""
    try:
        app()
    except SegueError as error:
        show_error(error)
        sys.exit(error.exit_code)
