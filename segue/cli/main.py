"""The `segue` command. It imports only the subcommand that it runs, because the imports of all subcommands take longer
than most subcommands run."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from segue.errors import SegueError
from segue.reports.console import console, show_error

_COMMANDS = {
    "init": (
        "init:init",
        "Write an example recipe, a run spec, a retraining, Prefect deployments and a CI step into this folder.",
    ),
    "doctor": (
        "doctor:doctor",
        "Check the store, Prefect, pools, notices, recipe and this machine, without buying capacity or changing a run.",
    ),
    "drill": (
        "drill:drill",
        "Train a recipe or a program twice, once with kills or notices, and compare the two final states bit for bit.",
    ),
    "plan": (
        "plan:plan",
        "Forecast a run before it starts: cost, lateness, preemptions, lost work, save interval. Nothing is trained.",
    ),
    "run": (
        "run:run",
        "Train a recipe or a program through Prefect; if no server is configured, start a local server with workers.",
    ),
    "runs": (
        "status:runs",
        "List the runs of a store: state, step, time before or after the deadline, cost.",
    ),
    "status": (
        "status:status",
        "Show one run: its segments, verdicts, preemptions, last decision, cost, and damaged records.",
    ),
    "costs": (
        "costs:costs",
        "Show the costs of the runs of a store: time on spot, time on on-demand, money, and what trains now.",
    ),
    "pools": (
        "pools:pools",
        "Show each pool as the runs of a store have seen it: price, share of time up, mean life, mean wait, starts."
        " Then show each machine: deaths, hangs, wrong numbers, failed checks, step time, and until when attempts "
        "avoid it.",
    ),
    "audit": (
        "audit:audit",
        "Replay committed steps of a run on this machine, and compare them with the log; name the machine that "
        "differs.",
    ),
    "stop": (
        "status:stop",
        "Stop a run: the attempt that trains commits a last checkpoint, and no further attempt starts.",
    ),
    "track": (
        "track:track",
        "Send a run's committed steps and its end to its experiment trackers; no tracker gets a step twice.",
    ),
    "recover": (
        "recover:recover",
        "Find open runs without a living parent, and start their parents again, as the deployment `recover` does.",
    ),
    "serve": (
        "serve:serve",
        "Run the parents of many runs in one process, in place of `prefect worker start --pool parents`.",
    ),
    "worker": (
        "worker:worker",
        "Run a worker that starts segments of a process pool two to three seconds sooner than Prefect's own worker.",
    ),
    "checkpoints": (
        "checkpoints:app",
        "List a run's checkpoints, export a checkpoint as plain files, import weights as a run's first checkpoint, "
        "or lift a quarantine.",
    ),
    "curve": (
        "curve:app",
        "Show a run's loss curve, check it, or draw one of its resume points.",
    ),
    "data": (
        "retraining.data:app",
        "Data of a scheduled retraining: write expectations, check a slot's data, show its Data Docs.",
    ),
    "retrain": (
        "retraining.retrain:app",
        "Scheduled retraining: deploy it, start or backfill its slots, show the outcome of each slot.",
    ),
    "models": (
        "retraining.models:app",
        "Versions of the models that scheduled retrainings train: list, compare, approve, promote, roll back.",
    ),
}
"""Maps each command to its module and function, and to its line in the list of commands."""


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in _COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _imported(name), rest


def _imported(name: str) -> Any:
    module, _, attribute = _COMMANDS[name][0].partition(":")
    given = getattr(import_module(f"segue.cli.{module}"), attribute)
    holder = typer.Typer(add_completion=False)
    holder.callback()(lambda: None)
    if isinstance(given, typer.Typer):
        holder.add_typer(given)
    else:
        holder.command()(given)
    group = get_command(holder)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


def whole_command() -> TyperGroup:
    """Return the `segue` command with all its subcommands imported."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    group.commands = {name: _imported(name) for name in _COMMANDS}
    return group


app = typer.Typer(name="segue", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


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


def main() -> None:
    """Run the console script. For an error of segue, print one paragraph and set the exit code."""
    try:
        app()
    except SegueError as error:
        show_error(error)
        sys.exit(error.exit_code)
