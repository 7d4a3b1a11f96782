"""`segue checkpoints`: list a run's checkpoints, and take one elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from segue.checkpoints.export import ExportFormat, choose_checkpoint, export_checkpoint, require_free_folder
from segue.cli_options import Endpoint, Json, Store, read_run
from segue.console import checkpoint_rows, console, errors, rows_table, show_json

_LIST = "list"


class ListingGroup(TyperGroup):
    """A group that lists when its first word is none of its commands: `segue checkpoints RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word `list` in front where it was left out; the group's own help stays the group's."""
        # Options too: `--store s3://bucket RUN` was always allowed, and only the listing knows which take a value.
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="checkpoints",
    cls=ListingGroup,
    help="List a run's checkpoints, or export one as plain files.\n\n"
    "`segue checkpoints RUN` is short for `segue checkpoints list RUN`.",
    no_args_is_help=True,
)


@app.command(_LIST)
def list_checkpoints(
    run: str, store: Store = ".segue/store", endpoint_url: Endpoint = None, as_json: Json = False
) -> None:
    """List a run's checkpoints: kept, pruned and quarantined, with their lineage."""
    _, history = read_run(run, store=store, endpoint_url=endpoint_url)
    rows = checkpoint_rows(history)
    if as_json:
        show_json({"run": run, "checkpoints": rows})
    else:
        console.print(rows_table(rows))


@app.command()
def export(
    run: str,
    *,
    to: Annotated[Path, typer.Option(help="Folder to write; it must be empty or not be there yet.")],
    file_format: Annotated[ExportFormat, typer.Option("--format", help="Kind of the state's files.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; the newest by default.")] = None,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Take it even if it was set aside.")] = False,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as plain files that need no segue: model, optimizer, random streams, position, curve.

    Exit code 0: all files are there. 1: the checkpoint is damaged. 2: it could not be done as asked.
    """
    log, history = read_run(run, store=store, endpoint_url=endpoint_url)
    checkpoint = choose_checkpoint(history, run_id=run, step=step, take_quarantined=quarantined)
    folder = require_free_folder(to)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        task = bars.add_task("loading torch")
        report = export_checkpoint(
            log,
            checkpoint,
            file_format=file_format,
            folder=folder,
            progress=lambda doing: bars.update(task, description=doing),
        )
    if as_json:
        show_json(report.model_dump(mode="json"))
        return
    console.print(rows_table([file.model_dump() for file in report.files]))
    where = f"step {report.step} of {run} is in {report.folder}; its README.md says what is what"
    console.print(where, markup=False, soft_wrap=True)  # A path that is broken in two cannot be copied.
