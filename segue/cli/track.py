"""`segue track`: send a run's steps to its experiment trackers now."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from pydantic import JsonValue

from segue.cli.options import Endpoint, Json, Store, read_run
from segue.errors import OptionError
from segue.reports.console import console, show_json
from segue.spec import RunSpec
from segue.spec.trackers import TrackerOptions, why_no_tracker


def track(
    run: str,
    *,
    tracker: Annotated[
        str | None,
        typer.Option(
            help="mlflow, tensorboard or package.module:factory; the default is all trackers of the run spec."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of --tracker as name=value; may be given several times.")
    ] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Send a run's committed steps and its end to its experiment trackers; no tracker gets a step twice."""
    runlog, history = read_run(run, store=store, endpoint_url=endpoint_url)
    asked = _asked(tracker, option or [], history.spec)
    from segue.integrations.tracking import open_tracker, send

    steps = {name: send(runlog, open_tracker(name, options)) for name, options in asked.items()}
    if as_json:
        show_json({"run": run, "trackers": steps})
        return
    for name, step in steps.items():
        console.print(f"{name} has every committed step of {run} up to {step}", markup=False)


def _asked(tracker: str | None, options: list[str], spec: RunSpec | None) -> dict[str, TrackerOptions]:
    own = spec.trackers if spec is not None else {}
    if tracker is not None:
        given = own.get(tracker, {}) | dict(_option(text) for text in options)
        why = why_no_tracker(tracker, given)
        if why is not None:
            raise OptionError(f"tracker: {why}")
        return {tracker: given}
    if options:
        raise OptionError("option: --tracker is missing; name the tracker of the option")
    if not own:
        raise OptionError("tracker: the run spec has no tracker; name one, e.g. --tracker mlflow")
    return own


def _option(text: str) -> tuple[str, JsonValue]:
    name, is_given, value = text.partition("=")
    if not is_given or not name.isidentifier():
        raise OptionError(f"option: must be name=value (got {text!r})")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
