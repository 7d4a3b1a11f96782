"""Errors about the versions of a model that a schedule trains."""

from __future__ import annotations

from datetime import datetime

from segue.errors.base import SegueError
from segue.errors.storage import StoreError


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


class NotWaitingError(SegueError):
    """Nobody is asked about a version, so there is nothing to decide."""

    exit_code = 2

    def __init__(self, *, name: str, version: int | None = None, outcome: str = "") -> None:
        self.name, self.version, self.outcome = name, version, outcome
        which = f"version {version}" if version is not None else "no version"
        verb = "does not wait" if version is not None else "waits"
        slot = f"; its slot has ended as {outcome}" if outcome else ""
        super().__init__(
            f"{which} of model {name} {verb} for a decision{slot}.",
            fix="put a version into service whatever its evaluation said: `segue models promote`.",
        )


class ScoresError(SegueError):
    """The function that scores a model did not return what an evaluation needs."""

    exit_code = 2

    def __init__(self, *, function: str, why: str) -> None:
        self.function, self.why = function, why
        super().__init__(f"{function}: {why}.", fix="return {metric: a number for each row of the frame}.")


class PublishError(SegueError):
    """The result of a run cannot be published as a version of its model."""

    exit_code = 2

    def __init__(self, *, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(
            f"{what} cannot be published: {why.rstrip('.')}.",
            fix="correct [publish] in retrain.toml, then start the slot again: the trained run is kept.",
        )


class DamagedVersionError(SegueError):
    """A published file of a version is gone, or has other bytes."""

    def __init__(self, *, key: str, why: str, is_in_service: bool = True) -> None:
        self.key, self.why = key, why
        fix = "put another version into service: `segue models rollback`."
        if not is_in_service:
            fix = "restore the file from a backup, or reject the version: `segue models reject`."
        super().__init__(f"{key} in the store is damaged: {why}.", fix=fix)


class NotInServiceError(SegueError):
    """A model has versions, and none of them is in service."""

    exit_code = 2

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(f"no version of model {name} is in service.", fix="promote one: `segue models promote`.")


class NoProgramError(SegueError):
    """A version was published without a program of torch.export."""

    exit_code = 2

    def __init__(self, *, name: str, version: int) -> None:
        self.name, self.version = name, version
        super().__init__(
            f"version {version} of model {name} was published without a program.",
            fix="set publish.example in retrain.toml, and load the weights of this version.",
        )


class RetrainJobError(SegueError):
    """The process that evaluates and publishes a candidate failed."""

    def __init__(self, *, what: str, why: str, traceback: str = "") -> None:
        self.what, self.why, self.traceback = what, why, traceback
        super().__init__(f"{what} failed: {why.rstrip('.')}.", fix="correct it, then start the slot again.")


class NoDocsError(SegueError):
    """A store has no Data Docs at a place."""

    exit_code = 2

    def __init__(self, *, where: str) -> None:
        self.where = where
        super().__init__(f"there are no Data Docs at {where}.", fix="name a slot whose data was checked: --slot.")


class SlotEndedError(SegueError):
    """A slot has ended, superseded or cancelled, before its candidate was recorded."""

    def __init__(self, *, outcome: str) -> None:
        self.outcome = outcome
        super().__init__(f"the slot has ended as {outcome}, so its candidate is not recorded.", fix="none needed.")


class SameDataError(SegueError):
    """A slot that was begun for new data has the same data as another slot, which trains or has trained on it."""

    def __init__(self, *, name: str, slot: datetime) -> None:
        self.name, self.slot = name, slot
        super().__init__(
            f"its files are those of the slot {slot:%Y-%m-%d %H:%M:%S %Z} of {name}, unchanged.",
            fix="none needed; start a slot by hand to train on them again.",
        )


class RetrainStoreError(StoreError):
    """The process that evaluates and publishes a candidate could not use the store."""

    def __init__(self, *, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}", fix="none needed; it is done again when the store is back.")
