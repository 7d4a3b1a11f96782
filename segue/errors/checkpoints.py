"""Defines the errors of commands that show, export and import checkpoints."""

from __future__ import annotations

from segue.errors.base import UsageError
from segue.errors.storage import CheckpointError

_MOST_NAMED = 4


class NoCheckpointError(UsageError):
    """The run has no usable checkpoint."""

    def __init__(self, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} has no usable checkpoint.",
            fix=f"run `segue checkpoints {run_id}` to see the state of its checkpoints; if the list is empty, wait "
            "for the "
            "first commit.",
        )


class NoMetricError(UsageError):
    """No usable checkpoint of the run has a metric, so segue cannot choose the best checkpoint."""

    def __init__(self, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"no usable checkpoint of run {run_id} has a metric, so the best checkpoint is not known.",
            fix="give the recipe evaluate=..., or call run.save_best(metric) in a program; or choose a checkpoint "
            "with --step.",
        )


class UnknownStepError(UsageError):
    """The run never committed a checkpoint of the requested step."""

    def __init__(self, *, run_id: str, step: int, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.steps_there = run_id, step, steps_there
        super().__init__(f"run {run_id} has no checkpoint of step {step}.", fix=_choose(steps_there))


class PrunedCheckpointError(UsageError):
    """The bytes of the checkpoint were deleted, because retention no longer kept the checkpoint."""

    def __init__(self, *, run_id: str, step: int, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.steps_there = run_id, step, steps_there
        super().__init__(
            f"the checkpoint of step {step} of run {run_id} was pruned: its bytes are gone.",
            fix=f"{_choose(steps_there)} To keep more checkpoints, set a larger checkpoints.keep in the run spec.",
        )


class QuarantinedCheckpointError(UsageError):
    """The checkpoint is quarantined. Commands use it only with --quarantined."""

    def __init__(self, *, run_id: str, step: int, reason: str, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.reason, self.steps_there = run_id, step, reason, steps_there
        super().__init__(
            f"the checkpoint of step {step} of run {run_id} is quarantined: {reason.rstrip('.')}.",
            fix=f"{_choose(steps_there)} Or add --quarantined to use this checkpoint, if its bytes verify.",
        )


class NotQuarantinedError(UsageError):
    """No checkpoint of the requested step is quarantined, so there is no quarantine to lift."""

    def __init__(self, *, run_id: str, step: int, quarantined: tuple[int, ...]) -> None:
        self.run_id, self.step, self.quarantined = run_id, step, quarantined
        super().__init__(
            f"run {run_id} has no quarantined checkpoint of step {step}.",
            fix=_choose(quarantined) if quarantined else "none needed: no checkpoint of the run is quarantined.",
        )


class NoLostRecordError(UsageError):
    """The requested record of the log can be read, was given up before, or does not exist."""

    def __init__(self, *, run_id: str, slot: int, unread: tuple[int, ...]) -> None:
        self.run_id, self.slot, self.unread = run_id, slot, unread
        named = ", ".join(map(str, unread[:_MOST_NAMED]))
        super().__init__(
            f"record {slot} of the log of {run_id} cannot be given up: the record can be read, or does not exist, or "
            "was given up before.",
            fix=f"give --record {named}." if unread else "none needed: every record can be read, or was given up.",
        )


class DamagedCheckpointError(CheckpointError):
    """The requested checkpoint is damaged. The command does not use another checkpoint instead."""

    def __init__(self, *, step: int, key: str, damage: str, steps_there: tuple[int, ...]) -> None:
        self.step, self.key, self.damage, self.steps_there = step, key, damage, steps_there
        super().__init__(
            f"the checkpoint of step {step} is damaged: {key} {damage}. Nothing was written or changed.",
            fix=f"restore that object from a copy{f', or {_choose(steps_there)}' if steps_there else '.'}",
        )


class ExportFolderError(UsageError):
    """The folder for an export cannot be used."""

    def __init__(self, *, folder: str, why: str, fix: str) -> None:
        self.folder, self.why = folder, why
        super().__init__(
            f"folder {folder} {why}. Nothing was exported, and nothing in the folder was changed.", fix=fix
        )


class WeightsFileError(UsageError):
    """A file with weights to import cannot be read."""

    def __init__(self, *, file: str, why: str, fix: str) -> None:
        self.file, self.why = file, why
        super().__init__(f"{file} {why}. Nothing was imported, and the run was not changed.", fix=fix)


class WeightsMismatchError(UsageError):
    """The weights to import do not match the recipe's model."""

    def __init__(
        self, *, file: str, missing: tuple[str, ...], unexpected: tuple[str, ...], misshapen: tuple[str, ...]
    ) -> None:
        self.file, self.missing, self.unexpected, self.misshapen = file, missing, unexpected, misshapen
        kinds = {
            "only the model has": missing,
            "only the file has": unexpected,
            "file and model disagree on": misshapen,
        }
        facts = "; ".join(f"{words} {_some(names)}" for words, names in kinds.items() if names)
        only_missing = missing and not unexpected and not misshapen
        partial = "use --partial to leave these parameters as the recipe builds them; or " if only_missing else ""
        super().__init__(
            f"{file} does not fit the recipe's model: {facts}. Nothing was imported, and the run was not changed.",
            fix=f"{partial}give the recipe the config with which these weights were trained.",
        )


class ForkMismatchError(UsageError):
    """The state in the checkpoint of another run does not fit the recipe of the new run."""

    def __init__(self, *, fork: str, component: str, why: str) -> None:
        self.fork, self.component, self.why = fork, component, why
        super().__init__(
            f"{component} in the checkpoint {fork} does not fit the recipe ({why}). Nothing was started.",
            fix=f"give the recipe the settings of that run, or leave the component out: --reset {component}.",
        )


class RunBegunError(UsageError):
    """A run has already started, so it cannot import weights or fork another run."""

    def __init__(self, *, run_id: str, what: str) -> None:
        self.run_id, self.what = run_id, what
        super().__init__(
            f"run {run_id} has already started: {what}. An import or a fork makes the first checkpoint of a run. "
            "Nothing was changed.",
            fix="give the new run another run id.",
        )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(names)} ({', '.join(names[:_MOST_NAMED])}{more})"


def _choose(steps: tuple[int, ...]) -> str:
    if not steps:
        return "none needed: the run has no other checkpoint."
    return f"choose one of the steps {', '.join(map(str, steps))}."
