"""`segue checkpoints`: list a run's checkpoints, export a checkpoint, import weights, and lift quarantines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from segue.checkpoints.loading.quarantine import give_up_by_name, lift
from segue.cli.options import DefaultCommandGroup, Endpoint, Json, Store, only_given, read_run, with_store
from segue.curves.curve_damage import damaged_parts, up_to
from segue.errors import COMMAND_LINE, OptionError
from segue.interop.export import ExportFormat, write_export
from segue.interop.import_weights import ImportReport, import_weights
from segue.interop.load import find_checkpoint
from segue.reports.console import console, progress, show_json
from segue.reports.tables import checkpoint_rows, rows_table
from segue.spec import RunSpec, read_toml

_LIST = "list"


class ListingGroup(DefaultCommandGroup):
    """A command group that runs `list` if the first argument names no command, as in `segue checkpoints RUN`."""

    default = _LIST


app = typer.Typer(
    name="checkpoints",
    cls=ListingGroup,
    help="List a run's checkpoints, export a checkpoint as plain files, import weights as a run's first checkpoint, or "
    "lift a quarantine.\n\n"
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
    to: Annotated[Path, typer.Option(help="Folder for the files; it must be empty or must not exist yet.")],
    file_format: Annotated[
        ExportFormat,
        typer.Option(
            "--format", help="Format of the state's files; epoch: torch files in a new folder epoch-N of --to."
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of the checkpoint; the default is the newest checkpoint.")
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Export the best model: the framework's own choice, or the checkpoint with the best metric."
        ),
    ] = False,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Export the checkpoint even if it is quarantined.")
    ] = False,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as files that can be read without segue: model, optimizer, RNG streams, cursor, loss curve.

    Exit code 0: all files are written. 1: the checkpoint is damaged. 2: the options are not valid for this run.
    """
    log, history = read_run(run, store=store, endpoint_url=endpoint_url)
    if best and step is not None:
        raise OptionError("--best: it cannot be used together with --step; give one of them")
    wanted: int | Literal["best"] | None = "best" if best else step
    checkpoint = find_checkpoint(log, history, step=wanted, take_quarantined=quarantined)
    with progress("loading torch") as say:
        report = write_export(log, checkpoint, file_format=file_format, folder=to, progress=say)
    if as_json:
        show_json(report.model_dump(mode="json"))
        return
    console.print(rows_table([file.model_dump() for file in report.files]))
    where = f"step {report.step} of {run} is in {report.folder}; README.md describes the files"
    console.print(where, markup=False, soft_wrap=True)  # A path that wraps cannot be copied.


@app.command("import")
def import_file(
    file: Annotated[
        Path, typer.Argument(help="State dict of the model: a .safetensors file, or a file written by torch.save.")
    ],
    *,
    run: Annotated[str | None, typer.Option(help="Name of the run to start.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe as package.module:function, imported from the current folder.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML run spec; options override it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data order and every random stream.")] = None,
    step: Annotated[
        int, typer.Option(min=0, help="Global step of the first checkpoint; the run continues from this step.")
    ] = 0,
    partial: Annotated[
        bool, typer.Option("--partial", help="Keep the recipe's initial weights for tensors that the file lacks.")
    ] = False,
    store: Annotated[str | None, typer.Option(help="Folder, or bucket as s3://, gs:// or az://bucket/prefix.")] = None,
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Start a run from weights in a file: its first checkpoint has these weights, and the recipe's other initial state.

    Exit code 0: the checkpoint is committed. 1: the store refused it. 2: the file or the options are not valid.
    """
    fields = read_toml(config) if config else {}
    fields |= only_given(run_id=run, recipe=recipe, steps=steps, seed=seed)
    fields = with_store(fields, url=store, endpoint_url=endpoint_url)
    spec = RunSpec.parse(fields, source=str(config) if config else COMMAND_LINE)
    with progress("reading the run's log") as say:
        report = import_weights(spec, file, step=step, partial=partial, progress=say)
    if as_json:
        show_json(report.model_dump(mode="json"))
        return
    _show(report)
    asked = {"--config": config, "--run-id": run, "--steps": steps, "--seed": seed, "--store": store}
    arguments = [
        spec.recipe_path,
        *(f"{name}={value}" for name, value in only_given(**asked, **{"--endpoint-url": endpoint_url}).items()),
    ]
    console.print(f"continue with: segue run {shlex.join(arguments)}", markup=False, soft_wrap=True)


@app.command("lift-quarantine")
def lift_quarantine(
    run: str,
    *,
    step: Annotated[int, typer.Option(min=0, help="Step of the quarantined checkpoint.")],
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Read a quarantined checkpoint again, and lift its quarantine if all its checksums are correct.

    After the quarantine is lifted, the next attempt may resume from the checkpoint.

    Exit code 0: the quarantine is lifted. 1: the checkpoint is damaged. 2: no checkpoint of that step is quarantined.
    """
    log, history = read_run(run, store=store, endpoint_url=endpoint_url)
    reason = lift(log, step=step)
    checkpoint = find_checkpoint(log, history, step=step, take_quarantined=True)
    for part in damaged_parts(log, up_to(history, checkpoint)):
        console.print(f"loss curve damaged: {part.sentence}", markup=False, soft_wrap=True)
    console.print(
        f"step {step} of {run} is no longer quarantined; the reason was: {reason}", markup=False, soft_wrap=True
    )


@app.command("give-up-record")
def give_up(
    run: str,
    *,
    record: Annotated[int, typer.Option(min=0, help="Number of the record, as `segue status` names it.")],
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Continue a run without a record of its log that is lost for good; a run with a signed log waits for this command.

    From then on, segue ignores the record, which may have been a quarantine, or the stop of the run.

    Exit code 0: the run continues without the record. 2: the record can be read, or was given up before.
    """
    log, _ = read_run(run, store=store, endpoint_url=endpoint_url)
    why = give_up_by_name(log, record)
    console.print(f"record {record} of {run} is given up ({why})", markup=False, soft_wrap=True)


def _show(report: ImportReport) -> None:
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    where = f"step {report.step} of {report.run_id} has the weights of {report.file.name}"
    console.print(f"{where}, sha256 {report.file.sha256}", markup=False, soft_wrap=True)
