"""A checkpoint as plain files in one folder, for people who go on without segue. Cheap to import: torch comes late."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

import segue
from segue.errors import (
    CheckpointError,
    CorruptShardError,
    DamagedCheckpointError,
    ExportFolderError,
    MalformedCheckpointError,
    MissingShardError,
    NoCheckpointError,
    PrunedCheckpointError,
    QuarantinedCheckpointError,
    TruncatedShardError,
    UnknownStepError,
)
from segue.records import Value
from segue.runlog.entries import OpenEntry
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

if TYPE_CHECKING:
    from segue.checkpoints.format.snapshot import Snapshot

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Told what is being done, in words for a terminal."""


class ExportFormat(StrEnum):
    """Whose files the state is written as."""

    TORCH = "torch"
    SAFETENSORS = "safetensors"


class ExportedFile(Value):
    """One file of an export."""

    name: str
    size_bytes: int = Field(ge=0)


class ExportReport(Value):
    """What was written where."""

    run_id: str
    step: int = Field(ge=0)
    format: ExportFormat
    folder: str = Field(description="Absolute.")
    files: tuple[ExportedFile, ...]


def choose_checkpoint(history: History, *, run_id: str, step: int | None, take_quarantined: bool) -> Checkpoint:
    """The checkpoint of that step, without one the newest usable; of two of one step the newer usable one.

    Raises:
        NoCheckpointError, UnknownStepError, PrunedCheckpointError: there is none to take.
        QuarantinedCheckpointError: it was set aside, and `take_quarantined` is not given.
    """
    if step is None:
        if history.newest is None:
            raise NoCheckpointError(run_id=run_id)
        return history.newest
    found = [c for c in reversed(history.checkpoints) if c.manifest.step == step]
    usable = [c for c in found if c in history.usable]
    quarantined = [c for c in found if c.quarantined is not None and not c.is_pruned]
    if usable or (quarantined and take_quarantined):
        return (usable or quarantined)[0]
    there = _steps_there(history)
    if quarantined:
        reason = quarantined[0].quarantined or ""
        raise QuarantinedCheckpointError(run_id=run_id, step=step, reason=reason, steps_there=there)
    raise (PrunedCheckpointError if found else UnknownStepError)(run_id=run_id, step=step, steps_there=there)


def require_free_folder(folder: Path) -> Path:
    """The folder, absolute and free of links, when an export may take its name.

    Raises:
        ExportFolderError: something is there that an export would hide or lose.
    """
    try:
        target = folder.expanduser().resolve()
        if target.is_mount():
            # The finished files arrive by one rename, and no rename can replace this.
            why = "is where a disk is mounted, so it cannot be put there as a whole"
            raise ExportFolderError(folder=str(folder), why=why, fix="Name a new folder inside it.")
        if target.exists() and not target.is_dir():
            raise ExportFolderError(folder=str(folder), why="is a file", fix="Name a folder.")
        if target.is_dir() and any(target.iterdir()):
            raise ExportFolderError(folder=str(folder), why="is not empty", fix="Name an empty or a new one.")
    except (OSError, RuntimeError) as error:  # RuntimeError: no such user as in ~nobody.
        raise _unwritable(folder, error) from None
    return target


def export_checkpoint(
    runlog: RunLog, checkpoint: Checkpoint, *, file_format: ExportFormat, folder: Path, progress: Progress | None = None
) -> ExportReport:
    """Write everything that a checkpoint holds as plain files into `folder`, whole or not at all.

    The run is only read. All files are durable before the folder gets its name; a crash before that leaves
    `.<name>.unfinished-<hex>` beside it, which may be deleted.

    Raises:
        ExportFolderError: the folder cannot be used or written.
        PrunedCheckpointError: the run went on meanwhile and has pruned it.
        DamagedCheckpointError: its bytes do not verify; names the damage.
        StoreReadError: the store could not be read.
    """
    say = progress or _say_nothing
    target = require_free_folder(folder)
    # Torch takes seconds to import: what can be refused without it has been refused by now.
    from segue.interop import export_files

    with _arriving_whole(target) as staging:
        say(f"reading and verifying step {checkpoint.manifest.step}, {checkpoint.manifest.size_bytes / 2**20:.0f} MiB")
        snapshot = _read(runlog, checkpoint)
        history = read_history(runlog)
        say("writing the loss curve")
        gaps = export_files.write_curve(staging / "loss_curve.parquet", runlog, history, checkpoint)
        told = {"quarantined": checkpoint.quarantined, "curve_gaps": gaps}
        spec = _spec_at(runlog, history, checkpoint)
        _write_json(staging / "train_state.json", _train_state(history, runlog.run_id, checkpoint) | told)
        _write_json(staging / "config.json", _config(spec))
        _write_json(staging / "data_position.json", _data_position(checkpoint, spec))
        export_files.write_state(staging, snapshot, as_torch=file_format is ExportFormat.TORCH, say=say)
        files = tuple(ExportedFile(name=p.name, size_bytes=p.stat().st_size) for p in sorted(staging.iterdir()))
        say("waiting for the disk")
    step = checkpoint.manifest.step
    log.info("checkpoint exported step=%d folder=%s files=%d", step, target, len(files))
    return ExportReport(run_id=runlog.run_id, step=step, format=file_format, folder=str(target), files=files)


def _read(runlog: RunLog, checkpoint: Checkpoint) -> Snapshot:
    from segue.checkpoints.loading.snapshot import read_checkpoint

    try:
        return read_checkpoint(runlog.store, run_id=runlog.run_id, manifest=checkpoint.manifest)
    except CheckpointError as error:
        step, history = checkpoint.manifest.step, read_history(runlog)
        there = tuple(number for number in _steps_there(history) if number != step)
        now = history.checkpoint(checkpoint.ref)
        if now is not None and now.is_pruned:
            raise PrunedCheckpointError(run_id=runlog.run_id, step=step, steps_there=there) from None
        raise DamagedCheckpointError(step=step, key=error.key, damage=_damage(error), steps_there=there) from None


def _damage(error: CheckpointError) -> str:
    """The facts of a damage. The errors' own sentences tell what a resume would do next, and this is none."""
    match error:
        case MissingShardError():
            return "is missing from the store"
        case TruncatedShardError():
            return f"has {error.found_bytes} bytes, its manifest says {error.expected_bytes}"
        case CorruptShardError():
            return f"chunk {error.chunk}: crc32c {error.found:08x} is not the manifest's {error.expected:08x}"
        case MalformedCheckpointError():
            return error.why
    return f"cannot be used ({error})"


@contextmanager
def _arriving_whole(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its name when all in it is durable, and is removed when that fails."""
    staging = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        staging.mkdir(parents=True)
        yield staging
        for path in (*staging.iterdir(), staging):
            _sync(path)
        staging.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(folder: Path, error: Exception) -> ExportFolderError:
    why = getattr(error, "strerror", None) or str(error)
    fix = "Name one that you may write to, on a disk with room."
    return ExportFolderError(folder=str(folder), why=f"cannot be written ({why})", fix=fix)


def _spec_at(runlog: RunLog, history: History, checkpoint: Checkpoint) -> RunSpec | None:
    """The run spec in force when it was committed: a run that was continued with another one has two."""
    entries = (slot.entry for slot in runlog.slots if slot.number < checkpoint.ref.slot)
    specs = [entry.spec for entry in entries if isinstance(entry, OpenEntry)]
    return specs[-1] if specs else history.spec


def _config(spec: RunSpec | None) -> dict[str, Any]:
    names = {"recipe", "config", "seed", "steps"}
    return dict.fromkeys(sorted(names)) if spec is None else spec.model_dump(mode="json", include=names)


def _data_position(checkpoint: Checkpoint, spec: RunSpec | None) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "step": manifest.step,
        "samples_seen": manifest.samples_seen,
        "epoch": manifest.epoch,
        "seed": spec.seed if spec else None,
        "order": (
            "The order of the samples is a function of (seed, epoch, samples_seen) and of what the recipe's DataLoader "
            "says: the number of samples, batch_size, shuffle and drop_last. samples_seen counts all samples of all "
            "steps up to this one; divided by the samples that one epoch uses it gives the epoch, and the rest is the "
            "place in it. Without shuffle the place is the sample id. With shuffle the id is a keyed bijection of the "
            "place: a balanced Feistel network of 6 rounds over the next power of four, its keys mixed from seed and "
            "epoch by splitmix64, applied again until the id is below the number of samples. It is "
            "segue.data.order.shuffled(), which needs numpy alone; torch.manual_seed does not give this order. In "
            "DataLoader workers the random streams are seeded again for each batch, from seed and samples_seen."
        ),
    }


def _train_state(history: History, run_id: str, checkpoint: Checkpoint) -> dict[str, Any]:
    attempt = next((a for a in history.attempts if a.claim.attempt_id == checkpoint.ref.attempt_id), None)
    verdict = attempt.verdict if attempt else None
    # By way of JSON text: pydantic makes NaN a string there, and only there.
    state = json.loads(
        checkpoint.manifest.model_dump_json(include={"step", "epoch", "metric", "environment", "parent"})
    )
    return {
        "segue_version": segue.__version__,
        "run_id": run_id,
        **state,
        "attempt": checkpoint.ref.attempt_id,
        "verdict": json.loads(verdict.model_dump_json()) if verdict else None,
    }


def _steps_there(history: History) -> tuple[int, ...]:
    return tuple(sorted({checkpoint.manifest.step for checkpoint in history.usable}))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _say_nothing(doing: str) -> None:
    return
