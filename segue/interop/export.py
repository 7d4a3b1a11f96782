"""Exports a checkpoint as plain files in one folder, for use without segue. The module imports torch late."""

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
from typing import Any, Literal

import yaml
from pydantic import Field

import segue
from segue.curves.curve_damage import damaged_parts, up_to
from segue.errors import ExportFolderError
from segue.interop.export_readme import EPOCH_NAMES
from segue.interop.load import find_checkpoint, read_verified
from segue.records import Value
from segue.runlog.entries import OpenEntry
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE, find_run
from segue.spec import RunSpec, StoreSpec

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""A function that receives texts about the progress of the work."""


class ExportFormat(StrEnum):
    """The format of the files that contain the state, named after the library that reads the files.

    `epoch` writes a folder `epoch-N` with `config.yaml`, `metrics.csv` and the same files as `torch`.
    """

    TORCH = "torch"
    SAFETENSORS = "safetensors"
    DCP = "dcp"
    EPOCH = "epoch"


class ExportedFile(Value):
    """One file of an export."""

    name: str
    size_bytes: int = Field(ge=0)


class ExportReport(Value):
    """The files of an export, and the folder of the export."""

    run_id: str
    step: int = Field(ge=0)
    format: ExportFormat
    folder: str = Field(description="Absolute path.")
    files: tuple[ExportedFile, ...]


def require_free_folder(folder: Path) -> Path:
    """Check that an export may use this folder. Return the folder's absolute path without links.

    Raises:
        ExportFolderError: an export would hide or lose the content of the folder.
    """
    try:
        target = folder.expanduser().resolve()
        if target.is_mount():
            # The finished files get their place by one rename, and a rename cannot replace a mount point.
            why = "is a mount point, which an export cannot replace"
            raise ExportFolderError(folder=str(folder), why=why, fix="name a new folder inside it.")
        if target.exists() and not target.is_dir():
            raise ExportFolderError(folder=str(folder), why="is a file", fix="name a folder.")
        if target.is_dir() and any(target.iterdir()):
            raise ExportFolderError(folder=str(folder), why="is not empty", fix="name an empty or a new folder.")
    except (OSError, RuntimeError) as error:  # RuntimeError: no such user, as in ~name.
        raise _unwritable(folder, error) from None
    return target


def export_checkpoint(
    run: str,
    folder: Path | str,
    *,
    store: StoreSpec | str | Path = DEFAULT_STORE,
    step: int | Literal["best"] | None = None,
    file_format: ExportFormat | str = ExportFormat.TORCH,
    take_quarantined: bool = False,
) -> ExportReport:
    """Write a run's checkpoint, by default the newest, as plain files into a new or empty folder.

    No program needs segue to read the files. The files contain the model, the optimizer, the random streams, the
    position, the loss curve, and a README.md that explains how to load the files. `file_format` is "torch",
    "safetensors", "dcp" (torch.distributed.checkpoint) or "epoch". The format "epoch" writes the files of "torch",
    `config.yaml` and `metrics.csv` into a new folder `epoch-N` inside `folder`, where N is the number of completed
    epochs. `step` may be "best". A framework's own checkpoint files are in `folder/`, and the files of its best model
    are in `best/`. The function only reads the run.

    Raises:
        RunNotFoundError, StoreUnreachableError: the run or the store does not exist.
        NoCheckpointError, UnknownStepError, PrunedCheckpointError, QuarantinedCheckpointError: there is no usable
            checkpoint of this step.
        ExportFolderError: the folder cannot be used or written.
        DamagedCheckpointError: the checkpoint's bytes do not match their checksums. The error names the damage.
    """
    runlog, history = find_run(run, store)
    checkpoint = find_checkpoint(runlog, history, step=step, take_quarantined=take_quarantined)
    return write_export(runlog, checkpoint, file_format=ExportFormat(file_format), folder=Path(folder))


def write_export(
    runlog: RunLog, checkpoint: Checkpoint, *, file_format: ExportFormat, folder: Path, progress: Progress | None = None
) -> ExportReport:
    """Write the whole content of a checkpoint as plain files into `folder`, completely or not at all.

    The function only reads the run. All files are durable before the folder gets its name. After an earlier crash, a
    folder `.<name>.unfinished-<hex>` may remain beside `folder`. You may delete the unfinished folder.

    Raises:
        ExportFolderError: the folder cannot be used or written.
        PrunedCheckpointError: the run pruned the checkpoint before or during the export.
        DamagedCheckpointError: the bytes of the checkpoint do not match their checksums. The error names the damage.
        StoreReadError: the store could not be read.
    """
    progress = progress or no_progress
    is_epoch = file_format is ExportFormat.EPOCH
    target = require_free_folder(folder / f"epoch-{checkpoint.manifest.epoch}" if is_epoch else folder)
    # The import of torch takes seconds, so all checks without torch come before it.
    from segue.interop import export_files

    with _arriving_whole(target) as staging:
        size_mib = checkpoint.manifest.size_bytes / 2**20
        progress(f"reading and verifying step {checkpoint.manifest.step}, {size_mib:.0f} MiB")
        snapshot = read_verified(runlog, checkpoint)
        history = read_history(runlog)
        progress("writing the loss curve")
        until = up_to(history, checkpoint)
        curve_name, config_name = EPOCH_NAMES.values() if is_epoch else EPOCH_NAMES
        gaps = export_files.write_curve(staging / curve_name, runlog, until)
        damage = [part.sentence for part in damaged_parts(runlog, until)]
        for sentence in damage:
            log.warning("the exported loss curve is damaged: %s", sentence)
        quality = {"quarantined": checkpoint.quarantined, "curve_gaps": gaps, "curve_damage": damage}
        spec = _spec_at(runlog, history, checkpoint)
        _write_json(staging / "train_state.json", _train_state(history, runlog.run_id, checkpoint) | quality)
        write_config = _write_yaml if is_epoch else _write_json
        write_config(staging / config_name, _config(spec))
        _write_json(staging / "data_position.json", _data_position(checkpoint, spec))
        export_files.write_state(staging, snapshot, file_format=file_format.value, progress=progress)
        written = sorted(path for path in staging.rglob("*") if path.is_file())
        files = tuple(
            ExportedFile(name=path.relative_to(staging).as_posix(), size_bytes=path.stat().st_size) for path in written
        )
        progress("waiting for the disk")
    step = checkpoint.manifest.step
    log.info("checkpoint exported step=%d folder=%s files=%d", step, target, len(files))
    return ExportReport(run_id=runlog.run_id, step=step, format=file_format, folder=str(target), files=files)


def no_progress(doing: str) -> None:
    """Do nothing. An export calls this function if the caller passes no function for progress."""


@contextmanager
def _arriving_whole(target: Path) -> Iterator[Path]:
    """Provide a folder beside the target.

    At the end of the block, the files are made durable, and then the folder is renamed to the target. After an error,
    the folder is removed.
    """
    staging = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        staging.mkdir(parents=True)
        yield staging
        for path in (*staging.rglob("*"), staging):
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
    fix = "name a folder that you may write to, on a disk with enough space."
    return ExportFolderError(folder=str(folder), why=f"cannot be written ({why})", fix=fix)


def _spec_at(runlog: RunLog, history: History, checkpoint: Checkpoint) -> RunSpec | None:
    """Return the run spec at the time of the commit, because a run may resume with another spec."""
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
            "The order of the samples is a function of (seed, epoch, samples_seen) and of the recipe's DataLoader: "
            "the number of samples, batch_size, shuffle and drop_last. samples_seen counts all samples of all "
            "steps up to this one. If samples_seen is divided by the number of samples in one epoch, the quotient is "
            "the epoch, and the remainder is the place in the epoch. Without shuffle, the place is the sample id. "
            "With shuffle, the id is a keyed bijection of the place: a balanced Feistel network of 6 rounds over the "
            "next power of four, with keys that splitmix64 mixes from seed and epoch, applied again until the id is "
            "below the number of samples. The function is segue.data.order.shuffled(), which needs only numpy; "
            "torch.manual_seed does not give this order. A sampler of the recipe's own is drawn once for each epoch, "
            "as in segue.data.sampled. In DataLoader workers, the random streams are seeded again for each batch, "
            "from seed and samples_seen."
        ),
    }


def _train_state(history: History, run_id: str, checkpoint: Checkpoint) -> dict[str, Any]:
    attempt = history.attempt_named(checkpoint.ref.attempt_id)
    verdict = attempt.verdict if attempt else None
    # The values go through JSON text, because only there pydantic writes NaN as a string.
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


def _write_yaml(path: Path, value: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
