"""`segue run`: train a recipe or a program through Prefect, on a configured server or on a local server.

The imports of Prefect and torch take seconds, so all checks without Prefect and torch come first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import (
    RankCount,
    Workload,
    only_given,
    parse_deadline,
    read_settings,
    require_prefect,
    table,
    with_store,
    workload_name,
)
from segue.cli.server import require_lasting_server, server
from segue.clock import SystemClock
from segue.controller.recovery import forget_parent, register_start, withdraw_start
from segue.controller.steps import check_start, open_run
from segue.errors import OptionError
from segue.interop.fork import fork_run
from segue.reports.console import console, errors, progress, show_json
from segue.reports.run_facts import run_facts, segment_facts
from segue.reports.summary import summarize
from segue.reports.tables import segments_table
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec, StoreSpec
from segue.stores import is_url

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

Source = tuple[str, int | Literal["best"] | None]
"""The name of a run, and the step of its checkpoint. If the step is None, the newest checkpoint is used."""


def parse_source(text: str) -> Source:
    """Split RUN, RUN@STEP or RUN@best into the name of a run and a step.

    Raises:
        SpecError: the text has none of these forms.
    """
    run, separator, step = text.partition("@")
    if run and not separator:
        return run, None
    if run and step == "best":
        return run, "best"
    if run and step.isascii() and step.isdigit():
        return run, int(step)
    raise OptionError(f"--from: {text!r} names no checkpoint of a run; write RUN, RUN@STEP or RUN@best")


def begin_with(spec: RunSpec, source: Source, reset: list[str]) -> None:
    """Commit the source as the run's first checkpoint, and report it.

    If the run already began with it, change nothing.
    """
    run, step = source
    with progress("reading the run's log") as say:
        report = fork_run(spec, run, step=step, reset=reset, progress=say)
    without = f", without its {' and '.join(report.fork.reset)}" if report.fork.reset else ""
    begins = "begins" if report.is_new else "began"
    if report.as_built:
        kept = ", ".join(report.as_built)
        note = f"note: the recipe's initial state is used for components that {report.fork.name} does not have: {kept}"
        errors.print(note, markup=False)
    errors.print(f"run {spec.run_id} {begins} with {report.fork.name}{without}", markup=False)


def run(
    workload: Workload = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML run spec; options override it. Without a recipe the default is run.toml, if this file exists."
        ),
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Goal in epochs, instead of --steps; segue builds the recipe to count the steps."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data order and every random stream.")] = None,
    ranks: RankCount = None,
    deadline: Annotated[str | None, typer.Option(help="Deadline: +2h, 06:00, or an ISO time.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Highest permitted cost of the run, in the currency of the pools; a resume may change it."),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Folder, or bucket as s3://, gs:// or az://bucket/prefix.")] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="Endpoint of the bucket; the default is the cloud's endpoint.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Begin with a checkpoint of another run: RUN, RUN@STEP or RUN@best.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option(help="With --from, part to leave out: optimizer, position or a component's name; repeatable."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Part of the setup that you changed on purpose, e.g. setup.code; repeatable."),
    ] = None,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Resume the run even if its run spec has changed.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return as soon as the run has started; needs PREFECT_API_URL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a recipe or a program through Prefect; if no server is configured, start a local server with workers.

    Exit code 0: the run reached its goal. 1: the run ended before its goal. 2: the run could not be started with these
    options.
    """
    fields, spec_source = read_settings(config, workload)
    if epochs is not None and steps is not None:
        raise OptionError("--epochs: it cannot be used together with --steps; give one of them")
    fields |= only_given(run_id=run_id, steps=steps if epochs is None else epochs, seed=seed, ranks=ranks)
    is_named = "run_id" in fields
    fields.setdefault("run_id", _default_run_id(workload_name(fields)))
    if deadline is not None:
        fields["deadline"] = parse_deadline(deadline, now=SystemClock().now())
    if budget is not None:
        fields["budget"] = table(fields, "budget") | {"per_run": budget}
    fields = with_store(fields, url=store, endpoint_url=endpoint_url)
    if accept:
        continuity = table(fields, "continuity")
        fields["continuity"] = continuity | {"accept": [*continuity.get("accept", ()), *accept]}
    spec = _absolute(RunSpec.parse(fields, source=spec_source))
    if epochs is not None:
        spec = spec.model_copy(update={"steps": _steps_of(spec, epochs)})
    if reset and from_ is None:
        raise OptionError("--reset: it can only be used together with --from; give --from too")
    source = parse_source(from_) if from_ is not None else None
    require_prefect("run")
    if detach:
        require_lasting_server("--detach")
    runlog = _checked(spec, accept_drift=accept_drift)
    if source is not None:
        begin_with(spec, source, reset or [])
    hint = f"Run the same command with --run-id {spec.run_id} to resume the run."
    with ends_cleanly(hint=hint):
        state = _train(spec, runlog, accept_drift=accept_drift, detach=detach, hint=None if is_named else hint)
    if state is None:
        console.print(f"started {spec.run_id}; `segue status {spec.run_id} --store {spec.store.url}` shows it")
        return
    from segue.prefect.state_words import in_words

    _end(runlog, spec, in_words(state), state.message or "", as_json=as_json)


def _steps_of(spec: RunSpec, epochs: int) -> int:
    with progress("building the recipe"):
        from segue.interop.epoch_length import steps_of_epochs

        return steps_of_epochs(spec, epochs)


def _checked(spec: RunSpec, *, accept_drift: bool) -> RunLog:
    """Run every check that needs no server, without writing a record. Return the run's log."""
    from segue.hosting import require_program
    from segue.launch.registry import require_clusters
    from segue.recipe import import_build

    if spec.program is not None:
        require_program(spec.program.command)
    if spec.program is not None and spec.data is not None:
        from segue.retraining.program_check import notes_on_files  # Imports torch, which takes most of a second.

        for note in notes_on_files(spec.program, folder=Path.cwd()):
            errors.print(f"note: {note}", markup=False)
    require_clusters(spec)
    build = import_build(spec.recipe) if spec.recipe is not None else None
    runlog = check_start(spec, clock=SystemClock(), accept_drift=accept_drift)
    if read_history(runlog).newest is not None:
        from segue.interop.code_check import refuse_changed_code  # Imports torch too.

        refuse_changed_code(runlog, spec, build)
    return runlog


def _train(spec: RunSpec, runlog: RunLog, *, accept_drift: bool, detach: bool, hint: str | None) -> State | None:
    """Start the parent, and follow it to its final state. If `detach` is set, return None after the start."""
    from prefect.settings import PREFECT_API_URL

    is_own_server = not PREFECT_API_URL.value()
    try:
        return _train_on_server(spec, runlog, accept_drift=accept_drift, detach=detach, hint=hint)
    except KeyboardInterrupt:
        if is_own_server:
            forget_parent(runlog.store, spec.run_id)  # No server is left that would recover it.
        raise


def _train_on_server(
    spec: RunSpec, runlog: RunLog, *, accept_drift: bool, detach: bool, hint: str | None
) -> State | None:
    from segue.deployments.follow import follow, open_client, require_deployments, trigger
    from segue.prefect.recovery.dead_parents import server_id, stop_if_cancelled

    with server(), open_client() as client:
        require_deployments(client, spec, is_new=not read_history(runlog).has_trained)
        stop_if_cancelled(client, runlog)
        opened = open_run(spec, clock=SystemClock(), accept_drift=accept_drift)
        register_start(opened.store, spec, clock=SystemClock(), server_id=server_id(client))
        try:
            flow_run_id = trigger(client, spec, accept_drift=accept_drift, requested_at_slot=opened.next_slot)
        except BaseException:
            withdraw_start(opened.store, spec.run_id)
            raise
        if detach:
            return None
        if hint is not None:
            errors.print(f"run {spec.run_id} in {spec.store.url}. {hint}", markup=False)
        return follow(client, flow_run_id, runlog, spec)


def _end(runlog: RunLog, spec: RunSpec, name: str, message: str, *, as_json: bool) -> None:
    history = read_history(runlog.reload())
    is_finished = history.is_finished(spec)
    if as_json:
        facts = run_facts(summarize(spec.run_id, history, now=SystemClock().now()), history)
        ended: dict[str, Any] = {"state_in_prefect": name, "message": message, "finished": is_finished}
        show_json(facts | ended | {"segments": segment_facts(history)})
    else:
        console.print(segments_table(history))
        shown = message if message.startswith(f"{name}: ") else f"{name}. {message}"
        console.print(f"{spec.run_id}: step {history.committed_step} of {spec.steps}. {shown}", markup=False)
    if not is_finished:
        raise typer.Exit(1)


def _default_run_id(name: str) -> str:
    return f"{name}-{SystemClock().now():%Y%m%d-%H%M%S}"


def _absolute(spec: RunSpec) -> RunSpec:
    # A worker may have another current folder, where a relative path would name another store or file.
    source = spec.pools.price_source
    if source is not None and source.kind == "file":
        path = Path(source.argument).expanduser().absolute()
        spec = spec.model_copy(update={"pools": spec.pools.model_copy(update={"prices": f"file: {path}"})})
    if spec.slurm is not None:
        folder = str(Path(spec.slurm.folder).expanduser().absolute())
        spec = spec.model_copy(update={"slurm": spec.slurm.model_copy(update={"folder": folder})})
    if is_url(spec.store.url):
        return spec
    url = str(Path(spec.store.url).expanduser().absolute())
    return spec.model_copy(update={"store": StoreSpec(**(spec.store.model_dump() | {"url": url}))})
