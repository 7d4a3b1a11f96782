"""Options that several commands share, and functions that read stores, settings, deadlines and durations."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from segue.errors import COMMAND_LINE, MissingExtraError, OptionError, OutputError
from segue.reports.console import errors
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.runlog.open import find_run
from segue.spec import StoreSpec, read_toml

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Store = Annotated[
    str, typer.Option(help="Store of the run: a folder, or a bucket as s3://, gs:// or az://bucket/prefix.")
]
DEFAULT_SPEC = Path("run.toml")
"""The run spec that `segue init` writes."""
SIGNING_KEY_FROM = "SEGUE_SIGNING_KEY_FROM"
"""Environment variable with the reference to the signing key of logs, for commands without a run spec."""
Endpoint = Annotated[str | None, typer.Option(help="Endpoint of the bucket; the default is the cloud's endpoint.")]
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|s|m|h|d)\s*")
_DURATION = re.compile(rf"\+?\s*(?:{_PART.pattern})+")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class DefaultCommandGroup(TyperGroup):
    """A command group that runs its `default` command if the first argument names no command."""

    default: str

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """If the first argument names no command, insert the default command's name. --help shows the group's help."""
        # Also before options, as in `--store s3://bucket RUN`: only the command knows which options take a value.
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def read_run(run: str, *, store: str, endpoint_url: str | None) -> tuple[RunLog, History]:
    """Open a run's log, and read its history.

    Raises:
        SpecError: the endpoint is not a URL.
        RunNotFoundError: the store does not have this run.
        SigningKeyNeededError: the run's log is signed, and SEGUE_SIGNING_KEY_FROM is not set.
        StoreUnreachableError: the store cannot be read.
    """
    return find_run(run, store_named(store, endpoint_url=endpoint_url))


def store_named(url: str, *, endpoint_url: str | None) -> StoreSpec:
    """Return the store of a command without a run spec, with the signing key that SEGUE_SIGNING_KEY_FROM refers to.

    Raises:
        SpecError: the URL, the endpoint or the reference to the key is not valid.
    """
    named = {"url": url, "endpoint_url": endpoint_url, "signing_key": os.environ.get(SIGNING_KEY_FROM)}
    return StoreSpec.parse(named, source=COMMAND_LINE)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """While the block writes an output file, turn each OSError into an OutputError.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(path=str(path), why=error.strerror or str(error)) from None


def require_finite(given: Mapping[str, float | None]) -> None:
    """Refuse options whose value is inf or nan, which typer accepts as numbers.

    Raises:
        SpecError: an option is not finite.
    """
    wrong = [(name, value) for name, value in given.items() if value is not None and not math.isfinite(value)]
    if wrong:
        raise OptionError(*(f"{name}: must be a finite number (got {value})" for name, value in wrong))


def require_prefect(command: str) -> None:
    """Refuse a command that needs Prefect if Prefect is not installed.

    Raises:
        MissingExtraError: Prefect is not installed.
    """
    if importlib.util.find_spec("prefect") is None:
        raise MissingExtraError(extra="prefect", needed_for=f"`segue {command}`")


Workload = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE | -- python SCRIPT ...",
        help="A recipe as package.module:function, imported from the current folder; or, after --, the command of a "
        "program that uses segue.session().",
        show_default=False,
    ),
]


RankCount = Annotated[
    int | None, typer.Option("--ranks", min=1, help="Number of processes that train together, started by torchrun.")
]


def with_workload(fields: Mapping[str, Any], words: list[str] | None) -> dict[str, Any]:
    """Return a run spec's fields with this workload.

    One word is a recipe, and several words are a program's command.
    """
    if not words:
        return dict(fields)
    others = {name: value for name, value in fields.items() if name not in ("recipe", "program")}
    return others | ({"recipe": words[0]} if len(words) == 1 else {"program": {"command": words}})


def only_given(**fields: Any) -> dict[str, Any]:
    """Return the fields whose value is not None. The value of an option that was not given is None."""
    return {name: value for name, value in fields.items() if value is not None}


def table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a run spec's fields. If the fields do not contain this table, return an empty table."""
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def with_store(fields: Mapping[str, Any], *, url: str | None, endpoint_url: str | None) -> dict[str, Any]:
    """Return a run spec's fields. If the options name a store or an endpoint, it replaces the one in the fields."""
    where = only_given(url=url, endpoint_url=endpoint_url)
    return dict(fields) | ({"store": table(fields, "store") | where} if where else {})


def read_settings(config: Path | None, words: list[str] | None) -> tuple[dict[str, Any], str]:
    """Return the fields of a command's run spec, and the name of their source for error messages.

    Without --config and without a workload, the fields come from run.toml in the current folder, if this file exists.
    If run.toml exists but is not used, print a line on standard error.
    """
    is_there = config is None and DEFAULT_SPEC.is_file()
    if is_there and words:
        errors.print(
            f"{DEFAULT_SPEC} of this folder is not used; --config {DEFAULT_SPEC} uses its settings.", markup=False
        )
    elif is_there:
        errors.print(f"settings: {DEFAULT_SPEC} of this folder", markup=False)
        config = DEFAULT_SPEC
    fields = read_toml(config) if config is not None else {}
    return with_workload(fields, words), str(config) if config is not None else COMMAND_LINE


def workload_name(fields: Mapping[str, Any]) -> str:
    """Return a short name for a run spec's workload: the name of the recipe's module, or of the program's script."""
    program = fields.get("program")
    command = program.get("command", ()) if isinstance(program, Mapping) else ()
    named = [str(word) for word in command[1:] if word != "-m"] or [str(fields.get("recipe")).partition(":")[0]]
    stem = Path(named[0]).name.removesuffix(".py").rpartition(".")[2]
    return re.sub("[^a-z0-9]+", "-", stem.lower()).strip("-") or "run"


def parse_deadline(text: str, *, now: datetime) -> datetime:
    """Read a deadline: `+90m`, `+8h24m`, `06:00` (the next 06:00 in local time), or an ISO time with a time zone.

    Raises:
        SpecError: the text has none of these forms, or an ISO time has no time zone.
    """
    try:
        moment = _moment(text.strip(), now=now)
    except (ValueError, OverflowError):
        raise OptionError(
            f"deadline: {text!r} is not a time; write +2h, +8h30m, 06:00 or 2026-12-01T06:00:00+00:00"
        ) from None
    if moment.tzinfo is None:
        # The run spec also refuses a time without a zone, because the parent's machine may be in another time zone.
        raise OptionError(f"deadline: {text!r} has no time zone; add one, e.g. Z or +01:00")
    return moment


def parse_seconds(text: str, *, name: str) -> float:
    """Read a duration such as `24h`, `90m`, `600s` or `1d12h`. `name` is the name of the option, for error messages.

    Raises:
        SpecError: the text is not a duration, or the duration is zero.
    """
    seconds = _duration_seconds(text.strip()) or 0.0
    if not 0 < seconds < math.inf:
        raise OptionError(f"{name}: {text!r} is not a duration; write 24h, 8h30m, 600s or 2d")
    return seconds


def _duration_seconds(text: str) -> float | None:
    """Return the duration in seconds.

    If the text is not a duration, or a unit is repeated or out of order, return None.
    """
    if not _DURATION.fullmatch(text):
        return None
    parts = [(_UNIT_SECONDS[unit], float(count)) for count, unit in _PART.findall(text)]
    units = [unit for unit, _ in parts]
    if units != sorted(set(units), reverse=True):
        return None
    return sum(unit * count for unit, count in parts)


def _moment(text: str, *, now: datetime) -> datetime:
    seconds = _duration_seconds(text)
    if seconds is not None:
        return now + timedelta(seconds=seconds)
    if clock := _CLOCK.fullmatch(text):
        # The offset is applied last, because summer time may begin or end before the next 06:00.
        today = now.astimezone().replace(tzinfo=None, hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        days = (today, today + timedelta(days=1))
        return next(moment for day in days if (moment := day.astimezone(UTC)) > now)
    return datetime.fromisoformat(text)
