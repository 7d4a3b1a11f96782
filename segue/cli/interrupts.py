"""Ctrl-C and SIGTERM: a command that started other processes ends the same way on both, and shows how to resume."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from segue.reports.console import errors


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised in the main thread where Ctrl-C would be."""


@contextmanager
def ends_cleanly(*, hint: str) -> Iterator[None]:
    """A block that SIGTERM ends as Ctrl-C does, by an exception, so that processes started in it are ended.

    Raises:
        typer.Exit: with 130 after Ctrl-C and 143 after SIGTERM, once `hint` was printed on standard error.
    """
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        errors.print(hint, markup=False)
        signum = signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT
        raise typer.Exit(128 + signum) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(signum: int, frame: FrameType | None) -> None:
    raise Terminated
