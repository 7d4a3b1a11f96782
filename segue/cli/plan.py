"""`segue plan`: forecast the cost, lateness and preemptions of a run before it starts."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.options import (
    Endpoint,
    Json,
    only_given,
    parse_deadline,
    parse_seconds,
    require_finite,
    with_store,
    writing,
)
from segue.clock import SystemClock
from segue.controller.costs.prices import at_current_prices
from segue.errors import OptionError, RunNotFoundError, StoreError, StoreUnreachableError
from segue.reports.console import console, progress, show_json
from segue.reports.forecast_views import forecast_lines, policy_row
from segue.reports.tables import rows_table
from segue.runlog.history import History
from segue.runlog.open import find_run
from segue.runlog.pool_memory import of_others, read_memory
from segue.spec import RunSpec, read_toml
from segue.stores import open_store

if TYPE_CHECKING:
    from segue.simulation.plan_ahead import Plan

_PRIOR = "prior"
_UNNAMED = "unnamed"


def plan(
    spec: Annotated[Path, typer.Argument(help="Run spec in TOML, as for `segue run --config`.")],
    *,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="Deadline: +2h from now, the next 06:00 in local time, or an ISO time with its time zone; "
            "default: the run spec's."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps to the goal; default: the run spec's.")] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1e-6, help="Seconds per step; default: the measured value or the run spec's.")
    ] = None,
    work: Annotated[
        str | None, typer.Option(help="Duration of all steps together, for example 24h; replaces --step-seconds.")
    ] = None,
    save_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Duration of a save in seconds, for the save interval; default: unknown."),
    ] = None,
    traces: Annotated[
        str, typer.Option(help="Trace file, or folder of trace files; prior: synthetic traces from published hazards.")
    ] = (_PRIOR),
    runs: Annotated[int, typer.Option(min=20, max=5000, help="Number of simulated runs.")] = 200,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the simulated spot capacity; equal seeds give equal figures.")
    ] = 0,
    store: Annotated[
        str | None,
        typer.Option(
            help="Store with the run's log: folder, or s3://, gs:// or az://bucket/prefix; default: the run spec's."
        ),
    ] = None,
    endpoint_url: Endpoint = None,
    picture: Annotated[Path | None, typer.Option(help="PNG file to write, with a dozen of the simulated runs.")] = None,
    as_json: Json = False,
) -> None:
    """Forecast a run before it starts: cost, lateness, preemptions, lost work, save interval. Nothing is trained.

    Exit code 0: the run can meet the deadline. 2: the run cannot meet it, or an option is wrong.
    """
    now = SystemClock().now()
    require_finite({"--step-seconds": step_seconds, "--save-seconds": save_seconds})
    if work is not None and step_seconds is not None:
        raise OptionError("--work and --step-seconds: give one of them")
    given = _spec(spec, deadline=deadline, steps=steps, store=store, endpoint_url=endpoint_url, now=now)
    seconds = parse_seconds(work, name="work") / given.steps if work is not None else step_seconds
    from segue.simulation.plan_ahead import plan_ahead
    from segue.simulation.traces import read_traces

    history, notes = _history(given)
    with progress(f"simulating {runs} runs") as say:
        made = plan_ahead(
            at_current_prices(given),
            history,
            now=now,
            traces=[] if traces == _PRIOR else read_traces(Path(traces)),
            step_seconds=seconds,
            save_seconds=save_seconds,
            runs=runs,
            seed=seed,
            notes=notes,
            on_policy=lambda name: say(f"simulating {runs} runs by policy {name}"),
        )
    facts, expected = made.facts | {"run": None if given.run_id == _UNNAMED else given.run_id}, made.forecast
    if picture is not None:
        _draw(made, given, now=now, to=picture)
    if as_json:
        show_json(facts | {"policies": [asdict(one) for one in expected.policies]})
        return
    for name, text in forecast_lines(facts):
        console.print(f"{name:>18}  {text}", markup=False, soft_wrap=True)
    console.print(rows_table([policy_row(one, currency=facts["currency"]) for one in expected.policies]))


def _spec(
    path: Path, *, deadline: str | None, steps: int | None, store: str | None, endpoint_url: str | None, now: datetime
) -> RunSpec:
    fields = read_toml(path)
    # `segue run` can take these from the command line; the forecast does not depend on them.
    fields = {"run_id": _UNNAMED, "recipe": f"{_UNNAMED}:build"} | fields
    if deadline is not None:
        fields["deadline"] = parse_deadline(deadline, now=now)
    fields = with_store(fields | only_given(steps=steps), url=store, endpoint_url=endpoint_url)
    return RunSpec.parse(fields, source=str(path))


def _history(spec: RunSpec) -> tuple[History, tuple[str, ...]]:
    """Return the run's history. If the store cannot be read, also return a note.

    If the run does not exist, the history contains only what other runs of the store have observed on the pools.
    """
    try:
        if spec.run_id != _UNNAMED:
            return find_run(spec.run_id, spec.store)[1], ()
    except RunNotFoundError:
        pass
    except StoreUnreachableError as error:
        return History(), (f"the run's log was not read: {error}",)
    if spec.store.signing_key is not None:
        return History(), ()  # A signed run does not use the memory of its store.
    try:
        known = read_memory(open_store(spec.store))
    except StoreError:
        return History(), ()
    return History(seen_pools=of_others(known, spec.pools.deployments)), ()


def _draw(made: Plan, spec: RunSpec, *, now: datetime, to: Path) -> None:
    from segue.reports.forecast_views import draw_sample

    latest = made.latest_safe_moment
    picture = draw_sample(
        made.sample,
        title=f"{len(made.sample.modes)} simulated runs by policy {spec.policy.name}",
        deadline_seconds=made.facts["remaining_seconds"],
        latest_seconds=(latest - now).total_seconds() if latest else None,
    )
    with writing(to):
        to.write_bytes(picture)
