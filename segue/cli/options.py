"""What every command that looks at a run asks for, and the way from there to the run's log."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from segue.errors import COMMAND_LINE, MissingExtraError, OutputError, SpecError
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.runlog.open import find_run
from segue.spec import StoreSpec

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Store = Annotated[str, typer.Option(help="Folder, file:///folder or s3://bucket/prefix.")]
Endpoint = Annotated[str | None, typer.Option(help="S3 endpoint other than AWS's.")]


class DefaultCommandGroup(TyperGroup):
    """A group that does its `default` when its first word is none of its commands."""

    default: str

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default's name in front where it was left out; the group's own help stays the group's."""
        # Options too: `--store s3://bucket RUN` is allowed, and only the default knows which take a value.
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def read_run(run: str, *, store: str, endpoint_url: str | None) -> tuple[RunLog, History]:
    """A run's log and what it says.

    Raises:
        SpecError: the endpoint is not an address.
        RunNotFoundError: the store holds no such run.
        StoreUnreachableError: the store cannot be read.
    """
    return find_run(run, StoreSpec.parse({"url": store, "endpoint_url": endpoint_url}, source=COMMAND_LINE))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes a file somebody asked for.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(path=str(path), why=error.strerror or str(error)) from None


def refuse_endless(given: Mapping[str, float | None]) -> None:
    """An option takes inf for a number; nothing can be planned with that.

    Raises:
        SpecError: one of them is not finite.
    """
    endless = [(name, value) for name, value in given.items() if value is not None and not math.isfinite(value)]
    if endless:
        problems = tuple(f"{name}: {value} is not a finite number; give another one" for name, value in endless)
        raise SpecError(source=COMMAND_LINE, problems=problems)


def require_prefect(command: str) -> None:
    """Refuse a command that needs Prefect where it is not installed.

    Raises:
        MissingExtraError: it is not.
    """
    if importlib.util.find_spec("prefect") is None:
        raise MissingExtraError(extra="prefect", needed_for=f"`segue {command}`")
