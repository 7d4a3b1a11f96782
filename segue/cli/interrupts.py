"""The handling of Ctrl-C and SIGTERM. Both end a command cleanly, together with the processes that the command
started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from segue.reports.console import errors


class Terminated(KeyboardInterrupt):
    """The exception for SIGTERM. It is raised in the main thread, in the same way as Python raises KeyboardInterrupt
    for Ctrl-C."""


@contextmanager
def ends_cleanly(*, hint: str) -> Iterator[None]:
    """A block in which SIGTERM raises an exception, in the same way as Ctrl-C, so that the block can end its processes.

    Raises:
        typer.Exit: with code 130 after Ctrl-C or 143 after SIGTERM, after `hint` was printed on standard error.
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
