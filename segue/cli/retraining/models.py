"""`segue models`: list, compare and promote the versions of models that scheduled retrainings train."""

from __future__ import annotations

import getpass
import socket
from datetime import UTC
from typing import Annotated, Any

import typer

from segue.cli.options import Endpoint, Json, Store, store_named
from segue.cli.server import has_server
from segue.clock import SystemClock
from segue.errors import NotWaitingError, OptionError
from segue.reports.console import console, errors, show_json
from segue.reports.tables import rows_table
from segue.retraining.diff import differences
from segue.retraining.history import Models
from segue.retraining.model_record import IN_WORDS, Answer, Decision
from segue.retraining.models import ModelsLog, model_names
from segue.retraining.pages import card, version_status
from segue.retraining.versions.serving import known_model, place_of, require_in_service
from segue.retraining.versions.version_files import require_artifact
from segue.spec import StoreSpec
from segue.stores import open_store
from segue.stores.base import Store as OpenedStore

app = typer.Typer(
    name="models",
    help="Versions of the models that scheduled retrainings train: list, compare, approve, promote, roll back.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Name of the model, as in retrain.toml.")]
Version = Annotated[int | None, typer.Option(help="Number of the version; the default is the version in service.")]
Why = Annotated[str, typer.Option(help="Reason, for the model's history.")]
Waiting = Annotated[
    int | None,
    typer.Argument(
        metavar="VERSION", help="Number of the version; the default is the newest version that waits for a decision."
    ),
]
By = Annotated[
    str | None, typer.Option(help="Your name, for the model's history; the default is USER@HOST of this machine.")
]


@app.command("ls")
def list_models(
    name: Annotated[
        str | None, typer.Argument(help="Name of a model, to list its versions; without a name, all models are listed.")
    ] = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """List the models of a store, or the versions of one model."""
    place = store_named(store, endpoint_url=endpoint_url)
    if name is None:
        opened = open_store(place)
        rows = [_model_row(known_model(place, each)) for each in model_names(opened)]
        facts = [{name.replace(" ", "_"): value for name, value in row.items()} for row in rows]
        _show({"store": opened.url, "models": facts}, rows, as_json=as_json)
        return
    models = known_model(place, name)
    rows = [_version_row(models, number) for number in models.candidates]
    facts = [_without_gain(row) | _numbers(models, number) for row, number in zip(rows, models.candidates, strict=True)]
    _show({"model": name, "in_service": models.in_service, "versions": facts}, rows, as_json=as_json)


@app.command()
def show(
    name: Name,
    version: Version = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Show the card of a version: data, check, metrics, cost, resumes, hashes, and the source checkpoint."""
    models, number = _chosen(name, version, store, endpoint_url)
    if as_json:
        candidate, start = models.version(number), models.slots[models.version(number).slot].start
        data = start.model_dump(mode="json", exclude={"run": True, "gate": {"profiles"}}) if start is not None else None
        facts = {"version": number, "status": version_status(models, number), "data": data}
        decisions = [
            event.record.model_dump(mode="json") | {"at": event.at.isoformat()}
            for event in models.events
            if isinstance(event.record, Decision) and event.version == number
        ]
        show_json(facts | candidate.model_dump(mode="json") | {"decisions": decisions})
        return
    console.print(card(models, number), markup=False, soft_wrap=True, end="")


@app.command()
def diff(
    name: Name,
    one: int,
    other: int,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Show the differences between two versions: data, configuration, code, metrics, cost."""
    models = known_model(store_named(store, endpoint_url=endpoint_url), name)
    named = {"one": f"version {one}", "other": f"version {other}"}
    found = differences(models, one, other)
    rows: list[dict[str, Any]] = [{"": each.what, named["one"]: each.one, named["other"]: each.other} for each in found]
    _show({"model": name, "differences": [each._asdict() for each in found]}, rows, as_json=as_json)


@app.command()
def promote(
    name: Name,
    version: Annotated[int, typer.Argument(help="Number of the version.")],
    why: Why,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Put a version into service by hand, whatever the result of its evaluation was."""
    _choose(store_named(store, endpoint_url=endpoint_url), name, version, why=why)


@app.command()
def rollback(name: Name, why: Why, store: Store = ".segue/store", endpoint_url: Endpoint = None) -> None:
    """Put the previous version back into service."""
    place = store_named(store, endpoint_url=endpoint_url)
    models = known_model(place, name)
    if models.before is None:
        raise OptionError(f"{name}: no other version was in service before; promote one: segue models promote")
    _choose(place, name, models.before, why=why)


@app.command()
def approve(
    name: Name,
    why: Why,
    version: Waiting = None,
    by: By = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Promote a candidate that waits for a decision; if several people decide, the first decision counts.

    Exit code 0: the candidate is promoted. 1: another person has rejected it, or the time for a decision is over. 2: no
    such candidate waits for a decision.
    """
    place = store_named(store, endpoint_url=endpoint_url)
    _decide(place, name, version, answer="approved", by=by, why=why)


@app.command()
def reject(
    name: Name,
    why: Why,
    version: Waiting = None,
    by: By = None,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Reject a candidate that waits for a decision; if several people decide, the first decision counts.

    Exit code 0: the candidate is not promoted. 1: a person has approved it. 2: no such candidate waits for a decision.
    """
    place = store_named(store, endpoint_url=endpoint_url)
    _decide(place, name, version, answer="rejected", by=by, why=why)


@app.command("serve-path")
def serve_path(
    name: Name,
    version: Version = None,
    program: Annotated[
        bool, typer.Option("--program", help="Print the path or URL of the torch.export program, not of the weights.")
    ] = False,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
) -> None:
    """Print the path or URL of the weights of a version, for the program that serves the model."""
    models, number = _chosen(name, version, store, endpoint_url)
    candidate = models.version(number)
    if program and candidate.program is None:
        raise OptionError(f"--program: version {number} was published without one; set publish.example in retrain.toml")
    artifact = candidate.program if program and candidate.program is not None else candidate.weights
    console.print(
        place_of(open_store(store_named(store, endpoint_url=endpoint_url)), artifact.key), markup=False, soft_wrap=True
    )


def _choose(place: StoreSpec, name: str, version: int, *, why: str) -> None:
    known_model(place, name)
    store = open_store(place)
    models = ModelsLog(store, name, spec=place).choose(version, why=why)
    console.print(f"version {models.in_service} of {name} is in service", markup=False)
    _follow(models, store)


def _decide(place: StoreSpec, name: str, version: int | None, *, answer: Answer, by: str | None, why: str) -> None:
    empty = next(
        (option for option, text in (("--why", why), ("--by", by)) if text is not None and not text.strip()), None
    )
    if empty is not None:
        raise OptionError(f"{empty}: empty; the model's history needs it")
    known, store = known_model(place, name), open_store(place)
    if version is None and not known.waiting:
        raise NotWaitingError(name=name)
    version = version if version is not None else max(known.waiting)
    if version in known.waiting and answer == "approved":
        require_artifact(store, known.version(version).weights)
    mine = Decision(version=version, answer=answer, by=by or _user(), why=why)
    models = ModelsLog(store, name, spec=place).decide(mine, now=SystemClock().now())
    end = models.slot_of(version).end
    assert end is not None  # A decision ends the slot.
    console.print(f"version {version} of {name} is {IN_WORDS[end.outcome]}: {end.why}", markup=False, soft_wrap=True)
    _follow(models, store)
    if (end.outcome == "promoted") is not (answer == "approved"):
        raise typer.Exit(1)


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        raise OptionError("--by: the user name of this machine is unknown; give your name") from None


def _follow(models: Models, store: OpenedStore) -> None:
    """Publish a person's decision to the registry and to Prefect.

    If the publication fails, the next slot repeats it.
    """
    _mirror(models, store)
    if has_server():
        _publish(models)


def _publish(models: Models) -> None:
    from segue.deployments.follow import open_client
    from segue.deployments.retrain_deployments import publish_history
    from segue.prefect.api import SILENCE

    try:
        with open_client() as client:
            publish_history(client, models, zone=UTC)
    except SILENCE as error:
        reason = type(error).__name__
        errors.print(
            f"the page in Prefect was not changed: {reason}. Fix: none needed, the next slot updates it.", markup=False
        )


def _mirror(models: Models, store: OpenedStore) -> None:
    registries = [version.registry for version in models.candidates.values() if version.registry is not None]
    if not registries:
        return
    from segue.retraining.versions.mlflow_mirror import mirror

    try:
        mirror(registries[-1], models, store)
    except Exception as error:  # mlflow raises many types; the choice is recorded all the same.
        reason = f"{type(error).__name__}: {error}"
        errors.print(
            f"the registry was not changed: {reason}. Fix: none needed, the next slot updates it.", markup=False
        )


def _chosen(name: str, version: int | None, store: str, endpoint_url: str | None) -> tuple[Models, int]:
    models = known_model(store_named(store, endpoint_url=endpoint_url), name)
    number = version if version is not None else require_in_service(models)
    models.version(number)
    return models, number


def _model_row(models: Models) -> dict[str, Any]:
    last = [*models.slots.values()][-1] if models.slots else None
    outcome = "-" if last is None else last.outcome_in_words
    since = [event.at for event in models.events if event.in_service == models.in_service]
    return {
        "model": models.name,
        "in service": models.in_service,
        "since": since[0].isoformat(timespec="minutes") if since and models.in_service is not None else None,
        "versions": len(models.candidates),
        "last slot": last.slot.isoformat(timespec="minutes") if last is not None else None,
        "outcome": outcome,
    }


def _version_row(models: Models, number: int) -> dict[str, Any]:
    version = models.version(number)
    first = version.comparisons[0] if version.comparisons else None
    return {
        "version": number,
        "slot": version.slot.isoformat(timespec="minutes"),
        "status": version_status(models, number),
        "metric": f"{first.metric} {first.value_in_words}" if first is not None else None,
        "gain": f"{100 * first.gain.value:+.2f} %" if first is not None and first.gain is not None else None,
        "why": version.why,
    }


def _without_gain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "gain"}


def _numbers(models: Models, number: int) -> dict[str, Any]:
    """Return the metric, its value and the gain of a version for JSON output."""
    version = models.version(number)
    first = version.comparisons[0] if version.comparisons else None
    return {
        "metric": first.metric if first is not None else None,
        "value": first.value if first is not None else None,
        "gain_share": first.gain.value if first is not None and first.gain is not None else None,
    }


def _show(facts: dict[str, Any], rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        show_json(facts)
    elif rows:
        console.print(rows_table(rows))
    else:
        console.print("none")
