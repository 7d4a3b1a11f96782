"""`segue data`: write a first suite of expectations, check a slot's data without training, show its Data Docs."""

from __future__ import annotations

import functools
import http.server
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import Json, writing
from segue.cli.retraining.retrain import DEFAULT, File, moment
from segue.clock import SystemClock
from segue.data.files import fetch, find
from segue.data.frames import facts_of
from segue.errors import NoDataError, NoDocsError, OptionError
from segue.reports.console import console, errors, show_json
from segue.reports.tables import rows_table
from segue.retraining.gate.docs import fetch_docs
from segue.retraining.slots import slot_at, store_of
from segue.retraining.spec import RetrainSpec, WindowFile
from segue.retraining.versions.serving import model_or_empty
from segue.retraining.window import window_of
from segue.spec import DataAccess, Reading
from segue.stores import open_store

app = typer.Typer(
    name="data",
    help="Data of a scheduled retraining: write expectations, check a slot's data, show its Data Docs.",
    no_args_is_help=True,
)

Slot = Annotated[str | None, typer.Option(help="Time of the slot, as an ISO time; the default is now.")]


@app.command()
def profile(
    files: Annotated[
        list[str], typer.Argument(help="Valid data, as files, globs, or prefixes with s3://, gs:// or az://.")
    ],
    *,
    to: Annotated[Path, typer.Option(help="JSON file of the suite, e.g. expectations/flights.json.")],
    endpoint_url: Annotated[str | None, typer.Option(help="Endpoint of s3:// files; default: AWS.")] = None,
    reading: Annotated[Path | None, typer.Option(help="retrain.toml with the file format in [data.reading].")] = None,
) -> None:
    """Write a first suite of Great Expectations that these files meet, as a draft for you to correct.

    The command does not overwrite an existing suite. Exit code 0: the suite is written. 2: no file matches, or the
    suite already exists.
    """
    if to.exists():
        raise OptionError(f"--to: {to} exists; name a new file")
    from segue.data.tables.column_types import layout_of
    from segue.retraining.gate.columns import columns_of
    from segue.retraining.gate.suite import starter_suite

    rules = RetrainSpec.from_toml(reading).data.reading if reading is not None else Reading()
    access = DataAccess(endpoint_url=endpoint_url, reading=rules)
    found = list(dict.fromkeys(path for pattern in files for path in find(_absolute(pattern), access)))
    if not found:
        raise NoDataError(what="there are no files", where=tuple(files))
    described, held, local = [], [], {}
    for path in found:
        file, local[path] = fetch(path, access)
        facts = facts_of(local[path], name=path, reading=access.reading)
        held.append((Path(path).name, facts))
        known = file.model_dump() | {"rows": facts.rows, "period": Path(path).name, "is_held_back": False}
        described.append(WindowFile.model_validate(known))
    layout = layout_of(held, access.reading)
    for sentence in layout.unlike:
        errors.print(f"warning: {sentence}", markup=False)
    with columns_of(described, local, layout.columns, access.reading) as columns:
        suite = starter_suite(columns, name=to.stem)
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps(suite, indent=2) + "\n", encoding="utf-8")
    count = len(suite["expectations"])
    console.print(f"wrote {count} expectations from {len(found)} files to {to}; read and correct them", markup=False)


@app.command()
def check(file: File = DEFAULT, slot: Slot = None, as_json: Json = False) -> None:
    """Check the data of a slot as the retraining does, but do not train and do not record the result.

    Exit code 0: the data passes. 1: the check refuses the data. 2: there is no data for the slot.
    """
    from segue.retraining.gate.window_check import check_window

    spec = RetrainSpec.from_toml(file)
    when = moment(slot, spec, option="--slot") if slot is not None else slot_at(SystemClock().now())
    window, local = window_of(spec, when)
    known = model_or_empty(store_of(spec), spec.name).window_before(when)
    before = (known.window, known.gate) if known is not None else None
    gate = check_window(spec, window, local, slot=when, folder=file.absolute().parent, before=before)
    rows = [
        {
            "about": each.about,
            "expectation": each.expectation,
            "found": each.observed,
            "where": "; ".join(each.places[:3]),
        }
        for each in gate.findings
    ]
    if as_json:
        counts = {"rows": gate.rows, "expectations": gate.expectations}
        show_json({"outcome": gate.outcome, "files": [each.path for each in window.files], "findings": rows} | counts)
    else:
        if rows:
            console.print(rows_table(rows))
        where = f"{gate.rows:,} rows in {len(window.files)} files"
        console.print(f"{gate.outcome}: {gate.expectations} expectations over {where}", markup=False)
    if gate.outcome == "failed":
        raise typer.Exit(1)


@app.command()
def docs(
    file: File = DEFAULT,
    slot: Annotated[str | None, typer.Option(help="Time of the slot; the default is the newest slot.")] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to write the pages into, instead of serving them.")] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 means any free port.")] = 0,
) -> None:
    """Serve the Data Docs of a slot's check on this machine until Ctrl-C, or write them into a folder."""
    spec = RetrainSpec.from_toml(file)
    store = open_store(store_of(spec))
    slots = model_or_empty(store_of(spec), spec.name).slots
    wanted = moment(slot, spec, option="--slot") if slot is not None else None
    starts = [state.start for when, state in slots.items() if state.start is not None and wanted in (None, when)]
    places = [start.docs for start in starts if start.docs is not None]
    if not places:
        raise NoDocsError(where=f"{spec.name}, {slot or 'any slot'}, in {store.url}")
    if to is not None:
        with writing(to):
            console.print(fetch_docs(store, places[-1], to), markup=False, soft_wrap=True)
        return
    with (
        tempfile.TemporaryDirectory(prefix="segue-docs-") as folder,
        ends_cleanly(hint="The Data Docs are no longer served."),
    ):
        fetch_docs(store, places[-1], Path(folder))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as serving:
            errors.print(f"Data Docs: http://127.0.0.1:{serving.server_port}/ ; press Ctrl-C to stop", markup=False)
            serving.serve_forever()


def _absolute(pattern: str) -> str:
    if "://" in pattern:
        return pattern
    return str(Path.cwd() / pattern) + ("/" if pattern.endswith("/") else "")
