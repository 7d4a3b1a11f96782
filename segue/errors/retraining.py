"""Defines the errors of scheduled retraining and of the versions of its models."""

from __future__ import annotations

from datetime import datetime

from segue.errors.base import SegueError
from segue.errors.storage import StoreError


class UnknownModelError(SegueError):
    """The store has no model of this name."""

    exit_code = 2

    def __init__(self, *, name: str, store: str) -> None:
        self.name, self.store = name, store
        super().__init__(f"there is no model {name!r} in {store}.", fix="check the name and --store.")


class UnknownVersionError(SegueError):
    """The model has no version of this number."""

    exit_code = 2

    def __init__(self, *, name: str, version: int, known: tuple[int, ...]) -> None:
        self.name, self.version, self.known = name, version, known
        there = f"its versions are 1 to {max(known)}" if known else "it has none"
        super().__init__(
            f"model {name} has no version {version}: {there}.", fix="choose a version from `segue models ls`."
        )


class ModelChangedError(SegueError):
    """Another version was put into service after the evaluation of a candidate."""

    def __init__(self, *, name: str, compared_with: int | None, in_service: int | None) -> None:
        self.name, self.compared_with, self.in_service = name, compared_with, in_service
        then = f"version {compared_with}" if compared_with is not None else "no version"
        now = f"version {in_service}" if in_service is not None else "no version"
        super().__init__(
            f"model {name}: the candidate was compared with {then}, but {now} is in service now.",
            fix="compare the candidate with the version in service.",
        )


class NotWaitingError(SegueError):
    """No version, or not the requested version, waits for a person's decision."""

    exit_code = 2

    def __init__(self, *, name: str, version: int | None = None, outcome: str = "") -> None:
        self.name, self.version, self.outcome = name, version, outcome
        which = f"version {version}" if version is not None else "no version"
        verb = "does not wait" if version is not None else "waits"
        slot = f"; its slot has ended as {outcome}" if outcome else ""
        super().__init__(
            f"{which} of model {name} {verb} for a decision{slot}.",
            fix="to put a version into service regardless of its evaluation, use `segue models promote`.",
        )


class ScoresError(SegueError):
    """The function that scores a model returned a result that is not valid."""

    exit_code = 2

    def __init__(self, *, function: str, why: str) -> None:
        self.function, self.why = function, why
        super().__init__(
            f"{function}: {why}.", fix="return a dict: for each metric, one number for each row of the frame."
        )


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
    """A published file of a version is missing or has changed."""

    def __init__(self, *, key: str, why: str, is_in_service: bool = True) -> None:
        self.key, self.why = key, why
        fix = "put another version into service: `segue models rollback`."
        if not is_in_service:
            fix = "restore the file from a backup, or reject the version: `segue models reject`."
        super().__init__(f"{key} in the store is damaged: {why}.", fix=fix)


class NotInServiceError(SegueError):
    """The model has versions, but no version is in service."""

    exit_code = 2

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"no version of model {name} is in service.", fix="put a version into service: `segue models promote`."
        )


class NoProgramError(SegueError):
    """A version was published without a torch.export program."""

    exit_code = 2

    def __init__(self, *, name: str, version: int) -> None:
        self.name, self.version = name, version
        super().__init__(
            f"version {version} of model {name} was published without a torch.export program.",
            fix="load the weights of this version; for a program in later versions, set publish.example in "
            "retrain.toml.",
        )


class RetrainJobError(SegueError):
    """The process that evaluates and publishes a candidate failed."""

    def __init__(self, *, what: str, why: str, traceback: str = "") -> None:
        self.what, self.why, self.traceback = what, why, traceback
        super().__init__(f"{what} failed: {why.rstrip('.')}.", fix="correct the cause, then start the slot again.")


class NoDocsError(SegueError):
    """The store has no Data Docs for a slot."""

    exit_code = 2

    def __init__(self, *, where: str) -> None:
        self.where = where
        super().__init__(f"there are no Data Docs at {where}.", fix="use --slot to name a slot whose data was checked.")


class SlotEndedError(SegueError):
    """A slot was superseded or cancelled before its candidate was recorded."""

    def __init__(self, *, outcome: str) -> None:
        self.outcome = outcome
        super().__init__(f"the slot has ended as {outcome}, so its candidate is not recorded.", fix="none needed.")


class SameDataError(SegueError):
    """A slot was started for new data, but another slot trains or has trained on the same data."""

    def __init__(self, *, name: str, slot: datetime) -> None:
        self.name, self.slot = name, slot
        super().__init__(
            f"the slot has the same unchanged files as the slot {slot:%Y-%m-%d %H:%M:%S %Z} of {name}.",
            fix="none needed; to train on the same files again, start a slot by hand.",
        )


class RetrainStoreError(StoreError):
    """The process that evaluates and publishes a candidate could not use the store."""

    def __init__(self, *, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}", fix="none needed; segue tries again when the store is available.")
