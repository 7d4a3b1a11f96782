"""`segue run`: train a recipe through Prefect, on a configured server or on one of its own.

Prefect and torch take seconds to import, so they wait until all that can be refused without them has been.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from segue.cli.durations import parse_deadline
from segue.cli.options import require_prefect
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.errors import COMMAND_LINE
from segue.reports.tables import console, errors, segment_rows, segments_table, show_json
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec, StoreSpec, read_toml

_FOLDER = Path(".segue")


def run(
    recipe: Annotated[str, typer.Argument(help="package.module:function, found from the current folder.")],
    config: Annotated[Path | None, typer.Option(help="TOML run spec; the options here win over it.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; the same one goes on with it.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds weights, data order and every random stream.")] = None,
    deadline: Annotated[str | None, typer.Option(help="+2h, 06:00, or an ISO time.")] = None,
    store: Annotated[str | None, typer.Option(help="Folder, file:///folder or s3://bucket/prefix.")] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="S3 endpoint other than AWS's.")] = None,
    accept_drift: Annotated[bool, typer.Option("--accept-drift", help="Go on though the spec changed.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and leave; needs a configured server.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a recipe through Prefect; starts a local server and workers if no server is configured.

    Exit code 0: the goal is reached. 1: it ended without. 2: it could not be started as asked.
    """
    fields = read_toml(config) if config else {}
    fields |= _given(recipe=recipe, run_id=run_id, steps=steps, seed=seed)
    fields.setdefault("run_id", _default_run_id(recipe))
    if deadline is not None:
        fields["deadline"] = parse_deadline(deadline, now=datetime.now(UTC))
    if store is not None or endpoint_url is not None:
        given = fields.get("store")
        fields["store"] = (given if isinstance(given, dict) else {}) | _given(url=store, endpoint_url=endpoint_url)
    spec = _absolute(RunSpec.parse(fields, source=str(config) if config else COMMAND_LINE))
    require_prefect("run")
    from segue.recipe import import_build

    import_build(spec.recipe)
    runlog = open_run(spec, clock=SystemClock(), accept_drift=accept_drift)
    from segue.deployments.process.follow import follow, open_client, trigger

    with _server(), open_client() as client:
        flow_run_id = trigger(client, spec, accept_drift=accept_drift)
        if detach:
            console.print(f"started {spec.run_id}; `segue status {spec.run_id} --store {spec.store.url}` shows it")
            return
        state = follow(client, flow_run_id, runlog, spec)
    _end(runlog, spec, state.name or "", state.message or "", as_json=as_json)


def _end(runlog: RunLog, spec: RunSpec, name: str, message: str, *, as_json: bool) -> None:
    history = read_history(runlog.reload())
    is_finished = history.committed_step >= spec.steps
    facts: dict[str, Any] = {
        "run": spec.run_id,
        "state": name,
        "committed_step": history.committed_step,
        "steps": spec.steps,
        "finished": is_finished,
    }
    if as_json:
        show_json(facts | {"segments": segment_rows(history)})
    else:
        console.print(segments_table(history))
        console.print(f"{spec.run_id}: {name}, step {history.committed_step} of {spec.steps}. {message}", markup=False)
    if not is_finished:
        raise typer.Exit(1)


@contextmanager
def _server() -> Iterator[None]:
    from prefect.settings import PREFECT_API_URL

    from segue.deployments.process.stack import LocalStack

    if PREFECT_API_URL.value():
        yield
        return
    stack = LocalStack(_FOLDER, home=Path.cwd(), say=lambda text: errors.print(f"[dim]{text}[/]"))
    try:
        stack.start()
        with stack.settings():
            yield
    finally:
        stack.stop()


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _default_run_id(recipe: str) -> str:
    name = recipe.split(":", maxsplit=1)[0].rsplit(".", 1)[-1].lower().replace("_", "-")
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _absolute(spec: RunSpec) -> RunSpec:
    # A worker may run elsewhere on this machine; a relative folder would then be another one.
    if "://" in spec.store.url:
        return spec
    url = str(Path(spec.store.url).expanduser().absolute())
    return spec.model_copy(update={"store": StoreSpec(**(spec.store.model_dump() | {"url": url}))})
