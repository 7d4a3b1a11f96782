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

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} could not be read: {why}.", fix="check the path, the network and your access.")


class UnknownModelError(SegueError):
    """A store has no model of this name."""

    exit_code = 2

    def __init__(self, *, name: str, store: str) -> None:
        self.name, self.store = name, store
        super().__init__(f"there is no model {name!r} in {store}.", fix="check the name and --store.")


class UnknownVersionError(SegueError):
    """A model has no such version."""

    exit_code = 2

    def __init__(self, *, name: str, version: int, known: tuple[int, ...]) -> None:
        self.name, self.version, self.known = name, version, known
        there = f"its versions are 1 to {max(known)}" if known else "it has none"
        super().__init__(f"model {name} has no version {version}: {there}.", fix="see `segue models ls`.")


class ModelChangedError(SegueError):
    """Another version came into service after a candidate was compared with the one before it."""

    def __init__(self, *, name: str, compared_with: int | None, in_service: int | None) -> None:
        self.name, self.compared_with, self.in_service = name, compared_with, in_service
        then = f"version {compared_with}" if compared_with is not None else "no version"
        now = f"version {in_service}" if in_service is not None else "no version"
        super().__init__(
            f"model {name}: the candidate was compared with {then}, and {now} is in service now.",
            fix="compare it with the version in service.",
        )


class ScoresError(SegueError):
    """The function that scores a model did not return what an evaluation needs."""

    exit_code = 2

    def __init__(self, *, function: str, why: str) -> None:
        self.function, self.why = function, why
        super().__init__(f"{function}: {why}.", fix="return {metric: a number for each row of the frame}.")
