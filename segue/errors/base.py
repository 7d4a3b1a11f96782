"""The roots of the error tree."""

from __future__ import annotations

from typing import Any


class SegueError(Exception):
    """Base of everything segue raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take the facts as keywords; from another process an error comes with its sentence and facts.
        return _rebuilt, (type(self), self.args, self.__dict__)


class UsageError(SegueError):
    """Something asked for cannot be done as asked; nothing was started or changed."""

    exit_code = 2


def _rebuilt(kind: type[SegueError], args: tuple[Any, ...], facts: dict[str, Any]) -> SegueError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
