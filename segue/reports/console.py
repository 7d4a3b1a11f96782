"""Manages the terminal: one console for output, one console for errors, and the progress of a command.

On a terminal, the progress is one line that changes. In a file or pipe, the progress is several plain lines.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from segue.clock import Clock, SystemClock
from segue.errors import SegueError
from segue.units import duration

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)
QUIET_SECONDS = 3.0
"""In a file or pipe, a command reports no progress before it has run for this number of seconds."""
AGAIN_SECONDS = 15.0
"""Seconds after which a line about a long step is repeated, with the time so far."""
_PARTS = 10

Say = Callable[[str], None]


def show_error(error: SegueError) -> None:
    """Print an error and its fix as one paragraph on standard error."""
    errors.print("[bold red]segue:[/] ", end="")
    # A message may quote the output of other programs, which has line breaks of its own.
    errors.print(" ".join(str(error).split()), markup=False)


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


@contextmanager
def progress(first: str, *, console: Console = errors) -> Iterator[Say]:
    """Show the progress of a block of work.

    When a step begins, the block passes the name of the step to the yielded function.

    On a terminal, one line shows the newest step and the time. The line disappears at the end of the block. In a file
    or pipe, each step gets its own line, and a long step gets a further line every 15 s. All lines go to standard
    error.
    """
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(first, total=None)
            yield lambda text: shown.update(task, description=text)
        return
    lines = _Lines(first, lambda text: console.print(text, markup=False), SystemClock())
    try:
        yield lines.say
    finally:
        lines.close()


class _Lines:
    """Writes the progress as plain lines, but only after the work has lasted for `QUIET_SECONDS`."""

    def __init__(self, first: str, write: Say, clock: Clock) -> None:
        self._write, self._clock = write, clock
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._begin(first)
        self._is_shown = False
        self._thread = threading.Thread(target=self._work, name="segue-progress", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        with self._lock:
            self._begin(text)
            if self._is_shown:
                self._write(text)

    def _begin(self, text: str) -> None:
        self._text, self._began_at = text, self._clock.monotonic()
        self._again_at = self._began_at + AGAIN_SECONDS

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        if self._is_over.wait(QUIET_SECONDS):
            return
        with self._lock:
            self._is_shown = True
            self._write(self._text)
        while not self._is_over.wait(1.0):
            with self._lock:
                now = self._clock.monotonic()
                if now >= self._again_at:
                    self._again_at = now + AGAIN_SECONDS
                    self._write(f"{self._text} ({duration(now - self._began_at)} so far)")


class Reached(NamedTuple):
    """The progress of a training: the current activity, the current step and the number of steps."""

    doing: str
    step: int
    steps: int

    @property
    def in_words(self) -> str:
        return f"{self.doing}, step {self.step} of {self.steps}"

    def is_news_after(self, before: Reached | None) -> bool:
        """Whether this progress needs a line of its own, if the last line showed `before`.

        A new line is needed if a new activity has begun, or if another tenth of the steps is done.
        """
        if before is None or before.doing != self.doing:
            return True
        part = max(self.steps // _PARTS, 1)
        return self.step // part > before.step // part


class StepLines:
    """Writes a line about a training for each new activity and for each tenth of the steps."""

    def __init__(self, write: Say) -> None:
        self._write = write
        self._last: Reached | None = None

    def __call__(self, doing: str, step: int, steps: int) -> None:
        reached = Reached(doing, step, steps)
        if reached.is_news_after(self._last):
            self._last = reached
            self._write(reached.in_words)
