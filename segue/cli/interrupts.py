"""Handles Ctrl-C and SIGTERM. Both signals end a command cleanly, together with the processes that the command
started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from segue.reports.console import errors


class Terminated(KeyboardInterrupt):
    """The exception for SIGTERM. segue raises it in the main thread, as Python raises KeyboardInterrupt for Ctrl-C."""


@contextmanager
def ends_cleanly(*, hint: str) -> Iterator[None]:
    """While the block runs, let SIGTERM raise an exception, as Ctrl-C does, so that the block can end its processes.

    Raises:
        typer.Exit: the exit code is 130 after Ctrl-C, or 143 after SIGTERM. `hint` was printed on standard error.
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
