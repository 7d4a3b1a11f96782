"""The roots of the error tree."""

from __future__ import annotations

from typing import Any


class SegueError(Exception):
    """Base of everything segue raises on purpose: what happened, the evidence, then the fix.

    `exit_code` is the exit code of the command line.
    """

    exit_code = 1
    fix: str | None = None
    """What to do about it, also at the end of the message; None if the message needs none."""

    def __init__(self, message: str = "", *, fix: str | None = None) -> None:
        if fix is None:
            super().__init__(message)
            return
        self.fix = fix.removeprefix("Fix: ")
        super().__init__(f"{message} Fix: {self.fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take the facts as keywords; an error from another process comes with its message and facts.
        return _rebuilt, (type(self), self.args, self.__dict__)


class UsageError(SegueError):
    """A request cannot be carried out; nothing was started or changed."""

    exit_code = 2


def _rebuilt(kind: type[SegueError], args: tuple[Any, ...], facts: dict[str, Any]) -> SegueError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
