"""The error tree: one type per condition, the facts as attributes, a message that says the mend."""

from __future__ import annotations


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


class UnsupportedStateError(SegueError):
    """A piece of state has no safe representation."""

    def __init__(self, *, path: str, type_name: str) -> None:
        self.path, self.type_name = path, type_name
        super().__init__(
            f"{path}: cannot store a {type_name}. Checkpoints hold tensors, arrays, numbers, strings, lists, tuples "
            "and dicts (never pickles): give the object a state_dict() of those."
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


class DrillFailedError(SegueError):
    """A drill could not be made: the recipe does not even train undisturbed."""

    def __init__(self, *, recipe: str, why: str) -> None:
        self.recipe, self.why = recipe, why
        super().__init__(f"{recipe} does not reach its goal undisturbed: {why}. Mend the recipe, then drill again.")
