"""Defines errors about the data of a run."""

from __future__ import annotations

from segue.errors.base import SegueError


class DataChangedError(SegueError):
    """The content of a data file has changed since the run began."""

    exit_code = 2

    def __init__(self, *, path: str, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path} has changed since the run began: its SHA-256 was {expected[:12]}... and now is {found[:12]}...",
            fix="restore the old content of the file, or start a new run with the new file.",
        )


class NoDataError(SegueError):
    """Some or all files of a slot are missing, so the slot has no window of data."""

    exit_code = 2

    def __init__(self, *, what: str, where: tuple[str, ...]) -> None:
        self.what, self.where = what, where
        super().__init__(f"{what}: {', '.join(where)}.", fix="wait for the files, or correct [data] in retrain.toml.")


class DataUnreadableError(SegueError):
    """A data file could not be read."""

    exit_code = 2

    def __init__(self, *, path: str, why: str, fix: str = "check the path, the network and your access.") -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} could not be read: {why}.", fix=fix)


def printable(name: str) -> str:
    """Return a name from outside in a form for messages: on one line, with all characters visible."""
    return name if name.isprintable() and name.strip() == name != "" else repr(name)


class DataContentError(DataUnreadableError):
    """The content of a file breaks a rule of the reader, so other readers could read different values from the file."""

    def __init__(self, *, path: str, rule: str, fix: str, column: str | None = None, row: int | None = None) -> None:
        self.rule, self.column, self.row = rule, column, row
        place = [f"column {printable(column)}"] if column is not None else []
        place += [f"row {row}"] if row is not None else []
        super().__init__(path=path, why=f"{', '.join(place)}{': ' if place else ''}{rule}", fix=fix)
