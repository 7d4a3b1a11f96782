"""Errors about the data of a run."""

from __future__ import annotations

from segue.errors.base import SegueError


class DataChangedError(SegueError):
    """A file has other content than when the run began."""

    exit_code = 2

    def __init__(self, *, path: str, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path} has changed since the run began: its SHA-256 was {expected[:12]}... and is {found[:12]}... now.",
            fix="put the file back as it was, or start a new run with the new file.",
        )


class NoDataError(SegueError):
    """A slot has no window of data: files are missing, or there are none at all."""

    exit_code = 2

    def __init__(self, *, what: str, where: tuple[str, ...]) -> None:
        self.what, self.where = what, where
        super().__init__(f"{what}: {', '.join(where)}.", fix="wait for the files, or correct [data] in retrain.toml.")


class DataUnreadableError(SegueError):
    """A file of the data could not be read."""

    exit_code = 2

    def __init__(self, *, path: str, why: str, fix: str = "check the path, the network and your access.") -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} could not be read: {why}.", fix=fix)


def printable(name: str) -> str:
    """A name that someone else chose, as part of a sentence: on one line, and visible."""
    return name if name.isprintable() and name.strip() == name != "" else repr(name)


class DataContentError(DataUnreadableError):
    """The content of a file breaks a rule of the reader, so no two readers could be sure to see the same in it."""

    def __init__(self, *, path: str, rule: str, fix: str, column: str | None = None, row: int | None = None) -> None:
        self.rule, self.column, self.row = rule, column, row
        place = [f"column {printable(column)}"] if column is not None else []
        place += [f"row {row}"] if row is not None else []
        super().__init__(path=path, why=f"{', '.join(place)}{': ' if place else ''}{rule}", fix=fix)
