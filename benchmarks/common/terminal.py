"""What the benchmark commands share: their progress line, and leaving cleanly when they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from segue.reports.console import errors


def leave_as_on_ctrl_c() -> None:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP too: what was begun is cleaned up then as well."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


@contextmanager
def progress(*, lines_start_with: tuple[str, ...] = ("",)) -> Iterator[Callable[[str], None]]:
    """One line that changes on a terminal; elsewhere a line for each text that starts with one of these."""
    if errors.is_terminal:
        with errors.status("starting") as status:
            yield status.update
        return

    def say(text: str) -> None:
        if text.startswith(lines_start_with):
            errors.print(text, markup=False)

    yield say
