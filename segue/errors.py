"""The error tree: one type per condition, the facts as attributes, a message that says the mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segue.records import Anomaly


class SegueError(Exception):
    """Base of everything segue raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(SegueError):
    """Something asked for cannot be done as asked; nothing was started or changed."""

    exit_code = 2


class SpecError(UsageError):
    """A run spec has wrong fields."""

    def __init__(self, *, source: str, problems: tuple[str, ...]) -> None:
        self.source, self.problems = source, problems
        super().__init__(f"{source} is not a valid run spec: " + "; ".join(problems))


class DeadlinePassedError(UsageError):
    """The deadline lies before now."""

    def __init__(self, *, deadline: str, now: str) -> None:
        self.deadline, self.now = deadline, now
        super().__init__(f"deadline: {deadline} has passed (it is {now}). Give a later one, or none to run without.")


class RecipeError(UsageError):
    """The recipe path cannot be turned into a recipe."""

    def __init__(self, *, recipe: str, why: str) -> None:
        self.recipe, self.why = recipe, why
        super().__init__(
            f"recipe {recipe!r}: {why} Give it as package.module:function, importable from the current folder, "
            "where function(config) returns a segue.Recipe."
        )


class DriftError(UsageError):
    """A run is being continued with something other than what it was started with."""

    def __init__(self, *, run_id: str, fields: dict[str, tuple[str, str]]) -> None:
        self.run_id, self.fields = run_id, fields
        changes = "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fields.items())
        super().__init__(
            f"run {run_id} was started with another spec: {changes}. Give it a new run id, put the old value back, "
            "or pass --accept-drift to go on with the new one."
        )


class RunNotFoundError(UsageError):
    """The store holds no such run."""

    def __init__(self, *, run_id: str, store: str, known: tuple[str, ...] = ()) -> None:
        self.run_id, self.store, self.known = run_id, store, known
        there = f" Runs there: {', '.join(known)}." if known else ""
        super().__init__(f"no run {run_id!r} in {store}.{there} Check the run id and --store.")


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, *, extra: str, needed_for: str) -> None:
        self.extra, self.needed_for = extra, needed_for
        super().__init__(f"{needed_for} needs the extra {extra!r}: pip install 'segue[{extra}]'.")


class OrchestratorError(UsageError):
    """Prefect does not offer what the run needs."""

    def __init__(self, *, what: str, mend: str) -> None:
        self.what, self.mend = what, mend
        super().__init__(f"{what} {mend}")


class StoreError(SegueError):
    """Storage did not do what was asked."""


class StoreUnreachableError(StoreError, UsageError):
    """The store cannot be reached or does not let us in."""

    exit_code = 2

    def __init__(self, *, url: str, why: str, mend: str) -> None:
        self.url, self.why, self.mend = url, why, mend
        super().__init__(f"store {url}: {why} {mend}")


class MissingObjectError(StoreError):
    """There is no object of that name."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(f"{key} is not in the store. If a person deleted it, restore it from the bucket's versions.")


class BadKeyError(StoreError):
    """A key points outside the folder it belongs to, or is malformed."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(f"object key {key!r} is not a plain relative path; refused. Treat its source as hostile.")


class FencedError(SegueError):
    """Another attempt holds a newer claim. Stop; do not retry."""

    def __init__(self, *, epoch: int, newer_epoch: int) -> None:
        self.epoch, self.newer_epoch = epoch, newer_epoch
        super().__init__(
            f"claim epoch {epoch} was superseded by epoch {newer_epoch}: another attempt owns this run now. "
            "This one stops without committing; nothing needs doing."
        )


class StalePlanError(SegueError):
    """An attempt was started for a plan that is no longer the one in force. Stop; do not retry."""

    def __init__(self, *, segment: int, attempt: int, why: str) -> None:
        self.segment, self.attempt, self.why = segment, attempt, why
        super().__init__(
            f"segment {segment} attempt {attempt} came too late: {why}. It stops without touching the run."
        )


class LogMovedError(SegueError):
    """Someone appended to the log after it was read; the decision has to be made again on what it says now."""

    def __init__(self, *, slot: int) -> None:
        self.slot = slot
        super().__init__(f"log slot {slot} was taken by another writer; read the log again and decide anew.")


class DamagedRecordError(StoreError):
    """A record of the run's log cannot be read."""

    def __init__(self, *, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(f"{key}: {why}. The record is set aside and the rest of the log is used.")


class CheckpointError(SegueError):
    """A checkpoint cannot be used."""

    key: str


class MissingShardError(CheckpointError):
    """A shard that the manifest names is gone."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(f"{key} is missing from the store. The checkpoint is set aside; its predecessor is taken.")


class TruncatedShardError(CheckpointError):
    """A shard has another size than the manifest says."""

    def __init__(self, *, key: str, expected_bytes: int, found_bytes: int) -> None:
        self.key, self.expected_bytes, self.found_bytes = key, expected_bytes, found_bytes
        super().__init__(
            f"{key} has {found_bytes} bytes, its manifest says {expected_bytes}. The checkpoint is set aside; "
            "its predecessor is taken."
        )


class CorruptShardError(CheckpointError):
    """A shard's bytes do not match their checksum."""

    def __init__(self, *, key: str, chunk: int, expected: int, found: int) -> None:
        self.key, self.chunk, self.expected, self.found = key, chunk, expected, found
        super().__init__(
            f"{key} chunk {chunk}: crc32c {found:08x} is not the manifest's {expected:08x}. The checkpoint is set "
            "aside; its predecessor is taken."
        )


class MalformedCheckpointError(CheckpointError):
    """A checkpoint's bytes are sound but do not say what its manifest says."""

    def __init__(self, *, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(f"{key}: {why}. The checkpoint is set aside; its predecessor is taken.")


class MachineTooSmallError(SegueError):
    """A checkpoint is whole and does not fit into this machine's memory."""

    def __init__(self, *, key: str, needed_bytes: int, memory_bytes: int) -> None:
        self.key, self.needed_bytes, self.memory_bytes = key, needed_bytes, memory_bytes
        super().__init__(
            f"{key} has {needed_bytes / 1e9:.1f} GB and this machine {memory_bytes / 1e9:.1f} GB of memory. "
            "The checkpoint stays as it is; resume on a larger machine."
        )


class UnsupportedStateError(SegueError):
    """A piece of state has no safe representation."""

    def __init__(self, *, path: str, type_name: str) -> None:
        self.path, self.type_name = path, type_name
        super().__init__(
            f"{path}: cannot store a {type_name}. Checkpoints hold tensors, arrays, numbers, strings, lists, tuples "
            "and dicts (never pickles): give the object a state_dict() of those."
        )


class StateTooLargeError(SegueError):
    """The state has more of something than a checkpoint can have and still be read back."""

    def __init__(self, *, what: str, found: int, most: int, mend: str) -> None:
        self.what, self.found, self.most, self.mend = what, found, most, mend
        super().__init__(f"{what}: {found}, and a checkpoint can have {most}. {mend} Nothing was written.")


class WriterDiedError(SegueError):
    """The process that writes checkpoints ended."""

    def __init__(self, *, exit_code: int | None, why: str) -> None:
        self.exit_code_found, self.why = exit_code, why
        super().__init__(
            f"the writer process is gone (exit code {exit_code}: {why}). It is started again and the save retried; "
            "if it was killed for memory, give the machine one more state's worth or set arenas = 1."
        )


class WorkAtRiskError(StoreError):
    """Nothing could be committed for longer than the user allows."""

    def __init__(self, *, at_risk_seconds: float, allowed_seconds: float, why: str) -> None:
        self.at_risk_seconds, self.allowed_seconds, self.why = at_risk_seconds, allowed_seconds, why
        super().__init__(
            f"{at_risk_seconds:.0f} s of work are not committed, and max_work_at_risk_seconds allows "
            f"{allowed_seconds:.0f}: {why} Mend the store, or allow more; the run goes on from its last commit."
        )


class BrokenResumeError(SegueError):
    """A resume did not continue the run."""

    exit_code = 3

    def __init__(self, *, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(
            f"the resume is not the run that would have been: {sentence.rstrip('.')}. Nothing was committed after it; "
            "mend the named state, then start the run again."
        )


class FireDrillError(SegueError):
    """A fresh process could not continue the run from its first checkpoint."""

    exit_code = 3

    def __init__(self, *, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(
            f"the fire drill says that a resume would not be this run: {sentence.rstrip('.')}. Register what is named "
            'and start a new run, or set continuity.fire_drill = "warn" to train on without a resume that holds.'
        )


class PoisonedStepError(SegueError):
    """A step's numbers went bad; the state after it is not kept."""

    def __init__(self, *, anomaly: Anomaly) -> None:
        self.anomaly = anomaly
        super().__init__(
            f"{anomaly.sentence}. Nothing of that step was kept: the run goes back to its newest checkpoint and does "
            "it again. If it comes back, look at these samples, the learning rate and the number format."
        )


class RankFailedError(SegueError):
    """The recipe raised on another rank."""

    def __init__(self, *, rank: int, type_name: str, message: str, traceback: str) -> None:
        self.rank, self.type_name, self.message, self.traceback = rank, type_name, message, traceback
        super().__init__(f"rank {rank} raised {type_name}: {message}. Mend the recipe; its traceback follows.")


class RankMismatchError(SegueError):
    """Two ranks hold different state where it should be the same."""

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        super().__init__(
            f"rank {rank} and rank 0 have parameters or optimizer state of other names or sizes at step {step}, so "
            "what they stored together is not all of it. Build the same model and optimizer on every rank. Nothing "
            "was committed."
        )


class RankDriftError(SegueError):
    """The ranks do not train one model any more."""

    def __init__(self, *, rank: int, channel: str, here: float, leads: float) -> None:
        self.rank, self.channel, self.here, self.leads = rank, channel, here, leads
        super().__init__(
            f"the {channel} norm of rank {rank} is {here!r}, that of rank 0 {leads!r}: the ranks train different "
            "models. Let the loss call the model it is given, not its .module, and shard all of a model or none of it."
        )


class HungRankError(SegueError):
    """A rank is alive and did not come to where the others waited for it."""

    def __init__(self, *, ranks: tuple[int, ...], waited_seconds: float, step: int) -> None:
        self.ranks, self.waited_seconds, self.step = ranks, waited_seconds, step
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"rank {names} hung: the others waited {waited_seconds:.0f} s for it after step {step}. Look for a loop or "
            "a lock that depends on the rank; if its steps just take that long, raise liveness.rank_seconds."
        )


class RankLostError(SegueError):
    """A rank ended without a word, or because of its store or its machine: nobody's code is to blame."""

    def __init__(self, *, ranks: tuple[int, ...], why: str) -> None:
        self.ranks, self.why = ranks, why
        super().__init__(f"rank {', '.join(map(str, ranks))} was lost: {why}. The run goes on from its last commit.")


class DrillFailedError(SegueError):
    """A drill could not be made: the recipe does not even train undisturbed."""

    def __init__(self, *, recipe: str, why: str) -> None:
        self.recipe, self.why = recipe, why
        super().__init__(f"{recipe} does not reach its goal undisturbed: {why}. Mend the recipe, then drill again.")


class OutputError(UsageError):
    """A file or folder that was asked for cannot be written."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be written ({why}). Name another place, or mend that. The run was only read.")


class NoResumeError(UsageError):
    """There is no resume to show."""

    def __init__(
        self, *, run_id: str, segment: int | None, attempt: int | None, there: tuple[tuple[int, int], ...]
    ) -> None:
        self.run_id, self.segment, self.attempt, self.there = run_id, segment, attempt, there
        asked = {"segment": segment, "attempt": attempt}
        which = " ".join(f"{name} {number}" for name, number in asked.items() if number is not None)
        others = ", ".join(f"{segment}.{attempt}" for segment, attempt in there)
        mend = f"Those that are there, as segment.attempt: {others}." if others else "There is no other either."
        whose = f"{which} of run {run_id}" if which else f"run {run_id}"
        super().__init__(f"{whose} has no resume that was judged, so there is no seam to draw. {mend}")


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
    """The checkpoint was there, and its bytes were deleted because the ring no longer kept it."""

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

    def __init__(self, *, folder: str, why: str, mend: str) -> None:
        self.folder, self.why, self.mend = folder, why, mend
        super().__init__(f"folder {folder} {why}. {mend} Nothing was exported, and nothing there was touched.")


class WeightsFileError(UsageError):
    """A file that weights were to be imported from cannot be read as such."""

    def __init__(self, *, file: str, why: str, mend: str) -> None:
        self.file, self.why, self.mend = file, why, mend
        super().__init__(f"{file} {why}. {mend} Nothing was imported, and the run was not touched.")


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
        mend = "--partial leaves those as the recipe builds them; or give" if only_missing else "Give"
        super().__init__(
            f"{file} does not fit the recipe's model: {facts}. {mend} the recipe the config that these weights were "
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


_MOST_NAMED = 4


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(names)} ({', '.join(names[:_MOST_NAMED])}{more})"


def _choice_of(steps: tuple[int, ...]) -> str:
    if not steps:
        return "There is no other to take."
    return f"Steps that are there: {', '.join(map(str, steps))}."
