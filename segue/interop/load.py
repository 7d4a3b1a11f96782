"""Loads a checkpoint of a run as plain values: chooses a checkpoint by step, verifies its bytes and decodes them.

The module imports torch late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from segue.checkpoints.format.names import FOLDER
from segue.checkpoints.retention import best_of
from segue.errors import (
    CheckpointError,
    CorruptShardError,
    DamagedCheckpointError,
    MalformedCheckpointError,
    MissingShardError,
    NoCheckpointError,
    NoMetricError,
    PrunedCheckpointError,
    QuarantinedCheckpointError,
    TruncatedShardError,
    UnknownStepError,
)
from segue.runlog.history import Checkpoint, History, read_history, require_whole
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE, find_run
from segue.spec import StoreSpec

if TYPE_CHECKING:
    from segue.checkpoints.format.snapshot import Snapshot


def load_checkpoint(
    run: str, *, store: StoreSpec | str | Path = DEFAULT_STORE, step: int | Literal["best"] | None = None
) -> dict[str, Any]:
    """Return the state in a run's checkpoint, by default the newest.

    The keys of the result are the components: `model`, `optimizer`, `scheduler`, `extra.<name>`, `rng.torch`,
    `progress` and others. Each value is the argument of the component's `load_state_dict`: dicts and lists of CPU
    tensors and plain values. If `step` is "best", the function loads the checkpoint with the best metric. If a
    framework has named the files of its best model, "best" means the newest checkpoint, and `["folder"]["best"]` has
    the names of these files in `["folder"]["files"]`. The function verifies every byte that it reads. It only reads the
    run.

    Raises:
        RunNotFoundError, StoreUnreachableError: the run or the store does not exist.
        NoCheckpointError, UnknownStepError, PrunedCheckpointError, QuarantinedCheckpointError: there is no usable
            checkpoint of this step.
        NoMetricError: `step` is "best", and no checkpoint has a metric.
        DamagedCheckpointError: the checkpoint's bytes do not match their checksums. The error names the damage.
    """
    runlog, history = find_run(run, store)
    checkpoint = find_checkpoint(runlog, history, step=step, take_quarantined=False)
    # The import of torch takes seconds, so all checks without torch come before it.
    from segue.interop.export_files import plain_state

    return dict(plain_state(read_verified(runlog, checkpoint)))


def find_checkpoint(
    runlog: RunLog, history: History, *, step: int | Literal["best"] | None, take_quarantined: bool
) -> Checkpoint:
    """Find a checkpoint as `choose_checkpoint` does.

    If `step` is "best" and the newest checkpoint contains a framework's best model, return the newest checkpoint.

    Raises:
        DamagedCheckpointError: the index of the newest checkpoint is damaged. The error names the damage.
        StoreReadError: the store could not be read.
    """
    newest = history.newest
    if step == "best" and newest is not None and FOLDER in newest.manifest.components:
        from segue.checkpoints.loading.read import read_index  # This imports torch.

        with _damage_named(runlog, newest):
            index = read_index([runlog.store], run_id=runlog.run_id, manifest=newest.manifest)
        folder = index.skeletons.get(FOLDER)
        if isinstance(folder, dict) and folder.get("best"):
            return newest
    return choose_checkpoint(history, run_id=runlog.run_id, step=step, take_quarantined=take_quarantined)


def choose_checkpoint(
    history: History, *, run_id: str, step: int | Literal["best"] | None, take_quarantined: bool
) -> Checkpoint:
    """Return the newest usable checkpoint of a step. If `step` is None, return the newest of all steps.

    Raises:
        NoCheckpointError, UnknownStepError, PrunedCheckpointError: there is no checkpoint of this step.
        QuarantinedCheckpointError: the checkpoint is quarantined, and `take_quarantined` is false.
        NoMetricError: `step` is "best", and no checkpoint has a metric.
    """
    if step == "best":
        winner = best_of(history.usable, history.spec.checkpoints.best if history.spec is not None else "min")
        if winner is None:
            raise NoMetricError(run_id=run_id)
        return winner
    if step is None:
        if history.newest is None:
            raise NoCheckpointError(run_id=run_id)
        return history.newest
    found = [c for c in reversed(history.checkpoints) if c.manifest.step == step]
    usable = [c for c in found if c in history.usable]
    quarantined = [c for c in found if c.quarantined is not None and not c.is_pruned]
    if usable or (quarantined and take_quarantined):
        return (usable or quarantined)[0]
    others = _usable_steps(history)
    if quarantined:
        reason = quarantined[0].quarantined or ""
        raise QuarantinedCheckpointError(run_id=run_id, step=step, reason=reason, steps_there=others)
    raise (PrunedCheckpointError if found else UnknownStepError)(run_id=run_id, step=step, steps_there=others)


def read_verified(runlog: RunLog, checkpoint: Checkpoint) -> Snapshot:
    """Read the checkpoint's state, verify every byte, and return the state.

    Raises:
        PrunedCheckpointError: the run has pruned the checkpoint.
        LostRecordError: the log is signed, and a record that may be a quarantine cannot be read.
        DamagedCheckpointError: the bytes do not match their checksums. The error names the damage.
        StoreReadError: the store could not be read.
    """
    from segue.checkpoints.loading.snapshot import read_checkpoint

    require_whole(runlog, read_history(runlog))
    with _damage_named(runlog, checkpoint):
        return read_checkpoint(runlog.store, run_id=runlog.run_id, manifest=checkpoint.manifest)


@contextmanager
def _damage_named(runlog: RunLog, checkpoint: Checkpoint) -> Iterator[None]:
    """Turn errors about an unusable checkpoint into errors for a person who loads the checkpoint."""
    try:
        yield
    except CheckpointError as error:
        step, history = checkpoint.manifest.step, read_history(runlog)
        others = tuple(number for number in _usable_steps(history) if number != step)
        now = history.checkpoint(checkpoint.ref)
        if now is not None and now.is_pruned:
            raise PrunedCheckpointError(run_id=runlog.run_id, step=step, steps_there=others) from None
        raise DamagedCheckpointError(step=step, key=error.key, damage=_damage(error), steps_there=others) from None


def _damage(error: CheckpointError) -> str:
    """Return a text about the damage, without the part of the error's message that describes a resume."""
    match error:
        case MissingShardError():
            return "is missing from the store"
        case TruncatedShardError():
            return f"has {error.found_bytes} bytes, its manifest has {error.expected_bytes}"
        case CorruptShardError():
            return f"chunk {error.chunk}: crc32c {error.found:08x} is not the manifest's {error.expected:08x}"
        case MalformedCheckpointError():
            return error.why
    return f"cannot be used ({error})"


def _usable_steps(history: History) -> tuple[int, ...]:
    return tuple(sorted({checkpoint.manifest.step for checkpoint in history.usable}))
