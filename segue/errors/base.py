"""Defines the base classes of all errors."""

from __future__ import annotations

from typing import Any


class SegueError(Exception):
    """Base class of all errors that segue raises. The message contains the problem, the evidence and the fix.

    `exit_code` is the exit code of a command that ends with this error.
    """

    exit_code = 1
    fix: str | None = None
    """The action that solves the problem, which ends the message. The value is None if no action is needed."""

    def __init__(self, message: str = "", *, fix: str | None = None) -> None:
        if fix is None:
            super().__init__(message)
            return
        self.fix = fix.removeprefix("Fix: ")
        super().__init__(f"{message} Fix: {self.fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take the facts as keywords, so pickle restores an error from its message and its attributes.
        return _rebuilt, (type(self), self.args, self.__dict__)


class UsageError(SegueError):
    """A request that segue cannot carry out. Nothing was started or changed."""

    exit_code = 2


def _rebuilt(kind: type[SegueError], args: tuple[Any, ...], facts: dict[str, Any]) -> SegueError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
