"""`segue doctor`: check everything that a run needs, before any capacity is bought."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import DEFAULT_SPEC, Json, Workload, with_workload
from segue.cli.server import has_server
from segue.credentials import redacted
from segue.doctor.check import Check, CheckOutcome, Item, examine
from segue.errors import SpecError
from segue.reports.console import console, errors, progress, show_json
from segue.spec import RunSpec, read_toml

if TYPE_CHECKING:
    from segue.doctor.subject import Subject

_UNNAMED = "unnamed"
_NO_SERVER = "PREFECT_API_URL is not set, so `segue run` would start a local server"
_STYLES = {CheckOutcome.OK: "green", CheckOutcome.WARN: "yellow", CheckOutcome.FAIL: "bold red"}


def doctor(
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="Run spec in TOML, as for `segue run --config`; without it, checks that need a run spec are skipped."
        ),
    ] = None,
    workload: Workload = None,
    as_json: Json = False,
) -> None:
    """Check the store, Prefect, pools, notices, recipe and this machine, without buying capacity or changing a run.

    Run the command on a machine of the pool, because the checks of notices and hardware examine this machine. With a
    run spec, the command trains three steps and saves them in the store, below a separate prefix that it removes
    afterwards.
    Exit code 0: no check failed. 1: at least one check failed.
    """
    # Imported here because the doctor loads the modules of all parts of a run, which the other commands do not need.
    from segue.doctor.registry import all_items

    if spec is None and DEFAULT_SPEC.is_file():
        errors.print(
            f"{DEFAULT_SPEC} of this folder was not checked; `segue doctor {DEFAULT_SPEC}` checks it.", markup=False
        )
    subject = _subject(spec, workload)
    items = all_items(subject, _of_server(subject))
    with ends_cleanly(hint="Not all checks were made."), progress("checks") as say:
        numbers = count(1)
        try:
            checks = examine(items, on_begin=lambda name: say(f"check {next(numbers)} of {len(items)}: {name}"))
        finally:
            subject.clear()
    if as_json:
        show_json(facts(checks))
    else:
        console.print(table(checks))
        console.print(summary(checks), markup=False)
    if has_failed(checks):
        raise typer.Exit(1)


def _subject(path: Path | None, workload: list[str] | None) -> Subject:
    """Return the subject of the checks.

    If the run spec is not valid, the check `spec.valid` fails and the others run.
    """
    from segue.doctor.subject import Subject

    if path is None:
        return Subject()
    try:
        fields = with_workload(read_toml(path), workload)
        is_named = "recipe" in fields or "program" in fields
        named = {"run_id": _UNNAMED} | fields | ({} if is_named else {"recipe": f"{_UNNAMED}:build"})
        spec = RunSpec.parse(named, source=str(path))
    except SpecError as error:
        return Subject(problem=error)
    return Subject(spec=spec, trains=is_named, store=spec.store)


def _in_words(error: Exception) -> str:
    """Return an error's message without the values of the settings, because a value may be a credential."""
    if not isinstance(error, ValidationError):
        return redacted(f"{type(error).__name__}: {error}")
    wrong = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong)


def _of_server(subject: Subject) -> list[Item]:
    from segue.doctor.registry import unusable_server, without_server

    # Prefect takes a second to import, and may not be installed.
    if importlib.util.find_spec("prefect") is None:
        return without_server("Prefect is not installed")
    try:
        if not has_server():
            return without_server(_NO_SERVER)
        from segue.prefect.doctor import items
    except ImportError as error:
        fix = "install the version of Prefect that segue needs: pip install 'segue[prefect]'."
        return unusable_server(f"Prefect cannot be imported: {redacted(str(error))}", fix=fix)
    except Exception as error:
        # Any exception, because Prefect reads its settings at import; the other checks do not need these settings.
        fix = "correct the variables PREFECT_... and the file profiles.toml in PREFECT_HOME (default ~/.prefect)."
        return unusable_server(f"Prefect's settings cannot be read: {_in_words(error)}", fix=fix)
    return items(subject)


def table(checks: Sequence[Check]) -> Table:
    """Return a table of the checks: one row for each check that ran, then one row for each reason of skipped checks."""
    made = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("outcome", "check"):
        made.add_column(name, no_wrap=True)
    made.add_column("reason", overflow="fold")
    for check in checks:
        if check.outcome is not CheckOutcome.SKIPPED:
            text = Text(check.reason)
            if check.fix:
                text.append(f". Fix: {check.fix}", style="bold")
            made.add_row(Text(check.outcome.value, style=_STYLES[check.outcome]), check.name, text)
    for reason, names in _skipped(checks).items():
        first = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        made.add_row(Text(CheckOutcome.SKIPPED.value, style="dim"), first, Text(reason, style="dim"))
    return made


def _skipped(checks: Sequence[Check]) -> dict[str, list[str]]:
    """Return the names of the skipped checks, by the reason for the skip."""
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome is CheckOutcome.SKIPPED:
            found.setdefault(check.reason, []).append(check.name)
    return found


def summary(checks: Sequence[Check]) -> str:
    """Return a text with the number of checks of each outcome."""
    counts = Counter(check.outcome for check in checks)
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in CheckOutcome)


def has_failed(checks: Sequence[Check]) -> bool:
    return any(check.outcome is CheckOutcome.FAIL for check in checks)


def facts(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the report as JSON-compatible data."""
    return {"failed": has_failed(checks), "checks": [check.model_dump(mode="json") for check in checks]}
