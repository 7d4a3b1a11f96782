"""Common parts of the benchmark commands: the progress line, and a clean end after a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from segue.reports.console import errors


def leave_as_on_ctrl_c() -> None:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP too, so that the benchmark also cleans up after these signals."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


@contextmanager
def progress(*, lines_start_with: tuple[str, ...] = ("",)) -> Iterator[Callable[[str], None]]:
    """On a terminal, one line that changes. In other outputs, a line for each text that starts with one of these
    prefixes."""
    if errors.is_terminal:
        with errors.status("starting") as status:
            yield status.update
        return

    def say(text: str) -> None:
        if text.startswith(lines_start_with):
            errors.print(text, markup=False)

    yield say
