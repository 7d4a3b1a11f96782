"""Commands that look at, give out and bring in checkpoints."""

from __future__ import annotations

from segue.errors.base import UsageError
from segue.errors.storage import CheckpointError

_MOST_NAMED = 4


class NoCheckpointError(UsageError):
    """The run has no checkpoint that can be used."""

    def __init__(self, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} has no checkpoint that can be used. `segue checkpoints {run_id}` shows what became of those "
            "it had; if there are none, wait for its first commit."
        )


class UnknownStepError(UsageError):
    """The run never committed a checkpoint of that step."""

    def __init__(self, *, run_id: str, step: int, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.steps_there = run_id, step, steps_there
        super().__init__(f"run {run_id} has no checkpoint of step {step}. {_choice_of(steps_there)}")


class PrunedCheckpointError(UsageError):
    """The checkpoint was there, and its bytes were deleted because retention no longer kept it."""

    def __init__(self, *, run_id: str, step: int, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.steps_there = run_id, step, steps_there
        super().__init__(
            f"the checkpoint of step {step} of run {run_id} was pruned: its bytes are gone. {_choice_of(steps_there)} "
            "A larger checkpoints.keep in the run spec keeps more of them."
        )


class QuarantinedCheckpointError(UsageError):
    """The checkpoint was set aside, so it is not taken without being asked for by that name."""

    def __init__(self, *, run_id: str, step: int, reason: str, steps_there: tuple[int, ...]) -> None:
        self.run_id, self.step, self.reason, self.steps_there = run_id, step, reason, steps_there
        super().__init__(
            f"the checkpoint of step {step} of run {run_id} was set aside: {reason.rstrip('.')}. "
            f"{_choice_of(steps_there)} --quarantined takes this one all the same, if its bytes verify."
        )


class DamagedCheckpointError(CheckpointError):
    """The checkpoint that was asked for does not verify; nobody asked for another one in its place."""

    def __init__(self, *, step: int, key: str, damage: str, steps_there: tuple[int, ...]) -> None:
        self.step, self.key, self.damage, self.steps_there = step, key, damage, steps_there
        super().__init__(
            f"the checkpoint of step {step} is damaged: {key} {damage}. Nothing was written and nothing was changed. "
            f"Restore that object from a copy, or take another step. {_choice_of(steps_there)}"
        )


class ExportFolderError(UsageError):
    """The folder for an export cannot be used."""

    def __init__(self, *, folder: str, why: str, fix: str) -> None:
        self.folder, self.why, self.fix = folder, why, fix
        super().__init__(f"folder {folder} {why}. {fix} Nothing was exported, and nothing there was touched.")


class WeightsFileError(UsageError):
    """A file that weights were to be imported from cannot be read as such."""

    def __init__(self, *, file: str, why: str, fix: str) -> None:
        self.file, self.why, self.fix = file, why, fix
        super().__init__(f"{file} {why}. {fix} Nothing was imported, and the run was not touched.")


class WeightsMismatchError(UsageError):
    """The weights to import are not those of the recipe's model."""

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
        fix = "--partial leaves those as the recipe builds them; or give" if only_missing else "Give"
        super().__init__(
            f"{file} does not fit the recipe's model: {facts}. {fix} the recipe the config that these weights were "
            "made with. Nothing was imported, and the run was not touched."
        )


class RunBegunError(UsageError):
    """Weights were to be imported into a run that has something of its own."""

    def __init__(self, *, run_id: str, what: str) -> None:
        self.run_id, self.what = run_id, what
        super().__init__(
            f"run {run_id} has begun already: {what}. An import makes the first checkpoint of a run: give another "
            "--run. Nothing was imported, and nothing there was touched."
        )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(names)} ({', '.join(names[:_MOST_NAMED])}{more})"


def _choice_of(steps: tuple[int, ...]) -> str:
    if not steps:
        return "There is no other to take."
    return f"Steps that are there: {', '.join(map(str, steps))}."
