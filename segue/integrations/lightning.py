"""Trains a Lightning `Trainer` in segments, with the checkpoint that the Trainer writes."""

from __future__ import annotations

import hashlib
import logging
import shutil
import signal
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins import CheckpointIO

from segue.hosting import host_here
from segue.integrations.lightning_paths import note, noted, put_paths, with_names
from segue.sessions import Session
from segue.trainer.programs.resumable import ResumableLoader

__all__ = ["ResumableLoader", "SegueCallback"]

_FILE = "lightning.ckpt"
log = logging.getLogger(__name__)

_KEPT = "kept"
_SCHEME = "segue:"
_MOST_NAMED = 3


class SegueCallback(lightning.Callback):
    """Trains a Lightning `Trainer` as a program of a run, which saves, ends and resumes at safe points between steps.

    Write `trainer = Trainer(..., callbacks=[callback])`, then `trainer.fit(model, ResumableLoader(loader),
    ckpt_path=callback.checkpoint)`. The state of the run is the checkpoint that the Trainer writes, and the random
    streams. A step is one update by the optimizers, from any number of batches. Outside a segment, the callback does
    nothing.

    The run also commits the best file of each `ModelCheckpoint`. If the machine does not have this file, a resume
    writes the file.
    """

    def __init__(self, folder: Path | str = "segue-lightning") -> None:
        """`folder` contains the Trainer's checkpoint until the run commits it."""
        self._run = Session(host_here())
        self._folder, self._places = Path(folder), Path(f"{folder}.places.json")
        self._steps: Iterator[int] = iter(())
        self._is_open = self._is_due = self._has_begun = False
        self._updates = 0
        self._kept = KeptFiles(Path(f"{folder}.kept"))
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
        restored = self._run.restore_folder(self._folder)
        self.checkpoint: str | None = str(restored / _FILE) if restored is not None else None
        """The file from which the Trainer must resume. In a new run, the value is None."""

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Make the Trainer write the same bytes for equal states."""
        if self._run.is_active and not isinstance(trainer.strategy.checkpoint_io, _Canonical):
            named = self._folder / _FILE
            trainer.strategy.checkpoint_io = _Canonical(trainer.strategy.checkpoint_io, named=named, kept=self._kept)

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Give this attempt's callbacks the files that earlier attempts wrote on this machine."""
        if self.checkpoint is None:
            return
        folders = {each.state_key: getattr(each, "dirpath", None) or "" for each in trainer.checkpoint_callbacks}
        paths = put_paths(checkpoint, noted(self._places, Path(self.checkpoint)), folders)
        self._kept.put_back(self._folder, paths)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let the run measure the model and its optimizers."""
        if not self._run.is_active:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # The Trainer's handlers would end it within an epoch, without a save.
        self._run.require_restored(trainer.global_step, call="trainer.fit(..., ckpt_path=callback.checkpoint)")
        if self._run.has_ended_early:
            trainer.should_stop = True
        else:
            self._begin(trainer, pl_module)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """If the training was already complete, so that this attempt made no step, end the run."""
        if self._run.is_active and not self._has_begun:
            self._begin(trainer, pl_module)
            self._run.finish(f"the Trainer had ended at step {trainer.global_step}")
            next(self._steps, None)

    def _begin(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._has_begun = True
        optimizers = {f"optimizer_{n}": _bare(each) for n, each in enumerate(trainer.optimizers)}
        self._run.measure(model=pl_module, **optimizers)
        self._steps = self._run.steps()
        self._updates = trainer.global_step

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Run the safe point, because no step is in progress at this moment."""
        if not self._run.is_active or self._is_open:
            return
        self._is_open = next(self._steps, None) is not None
        if not self._is_open:
            # The goal is reached: the epoch ends before this batch, as if a hook of the module returned -1.
            trainer.should_stop = True
            raise StopIteration

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report the step. If the run needs a save, commit the Trainer's checkpoint."""
        # Without this line, the loop counts as restarting until the end of a resumed epoch, and then does not step
        # a ReduceLROnPlateau. The batches and the validation of the epoch are not affected.
        trainer.fit_loop._restarting = False
        if not self._is_open or trainer.global_step == self._updates:
            return  # The step is not complete: gradients are accumulated.
        self._updates, self._is_open = trainer.global_step, False
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._run.report(loss=loss.detach() if isinstance(loss, torch.Tensor) else 0.0)
        if self._run.should_save:
            # A Trainer that is resumed from here would skip the validation and the schedulers of the epoch.
            self._is_due = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
            if not self._is_due:
                self._commit(trainer)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """If the save at the end of the previous epoch was postponed, commit now."""
        if self._run.is_active:
            _begin_epoch(trainer)
        if self._is_due:
            self._commit(trainer)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Close the last step."""
        if not self._run.is_active or self._is_open or not self._has_begun:
            return
        if self._is_due or not self._run.should_stop:  # The Trainer itself has ended the training.
            self._commit(trainer)
            self._run.finish(f"the Trainer ended at step {self._run.step + 1}")
        next(self._steps, None)

    def _commit(self, trainer: lightning.Trainer) -> None:
        self._is_due = False
        trainer.save_checkpoint(self._folder / _FILE)
        written = trainer.strategy.checkpoint_io
        paths = written.paths if isinstance(written, _Canonical) else {}
        note(self._places, self._folder / _FILE, paths)
        best = {getattr(each, "best_model_path", "") for each in trainer.checkpoint_callbacks}
        kept = self._kept.of(self._folder, {name: path for name, path in paths.items() if path in best})
        self._run.commit_folder(self._folder, instead=kept, best=exported(kept))


class _Canonical(CheckpointIO):
    """Writes the same bytes for equal states.

    Pickle alone writes different bytes if equal values are different objects.
    """

    def __init__(self, inner: CheckpointIO, *, named: Path, kept: KeptFiles) -> None:
        """`named` is the file in which names replace the paths.

        `kept` stores copies of the files of `ModelCheckpoint`.
        """
        self._inner, self._named, self._kept = inner, named, kept
        self.paths: dict[str, str] = {}
        """The paths of the files, by their names in the last written file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        named, paths = with_names(checkpoint)
        if Path(path) == self._named:
            checkpoint, self.paths = named, paths
        else:
            self._inner.save_checkpoint(_unshared(named), self._kept.add(path))
        self._inner.save_checkpoint(_unshared(checkpoint), path, storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        return self._inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        self._inner.remove_checkpoint(path)


def _unshared(value: Any) -> Any:
    if type(value) is str:
        return sys.intern(value)
    if type(value) in (dict, OrderedDict):
        return type(value)((_unshared(key), _unshared(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_unshared, value))
    return value


def _begin_epoch(trainer: lightning.Trainer) -> None:
    """Make each loader begin a new pass, although the Trainer has not reached the end of the previous pass.

    Without this call, a Trainer that resumes from a save at this moment would continue the previous epoch. Because the
    previous epoch has no batch left, the Trainer would make no step in this epoch.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_start:
        loop.epoch_loop.restarting = False
        loop.epoch_progress.current.ready += 1
    for loader in getattr(loop._combined_loader, "flattened", ()):
        if isinstance(loader, ResumableLoader):
            loader.end_pass()


def _bare(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)


class KeptFiles:
    """Copies of the best files. In the copies, names replace the paths, so that equal runs have equal copies."""

    def __init__(self, folder: Path) -> None:
        """`folder` is a local folder. If a file is missing in the folder, the run does not commit this file."""
        self._folder = folder

    def add(self, path: Any) -> Path:
        """Return the path to which the copy of a file is written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy = self._copy_of(path)
        # A save may have the previous copy mapped into memory, so the copy must not be overwritten.
        copy.unlink(missing_ok=True)
        return copy

    def of(self, committed: Path, paths: dict[str, str]) -> dict[str, bytes | Path]:
        """Return the copies of the best files that the run commits. The key is the name in the checkpoint.

        Also remove the other copies, and the files that a resume left in the folder, because the state of the last
        commit is already captured.
        """
        shutil.rmtree(committed / _KEPT, ignore_errors=True)
        copies = {_name_in_folder(name): self._copy_of(path) for name, path in paths.items()}
        for other in {*self._folder.glob("*.ckpt")} - {*copies.values()}:
            other.unlink(missing_ok=True)
        return {name: copy for name, copy in copies.items() if copy.is_file()}

    def put_back(self, committed: Path, paths: dict[str, str]) -> None:
        """Write the files of a restored folder to their paths on this machine, if these paths do not exist."""
        missing = []
        for name, path in paths.items():
            file = committed / _name_in_folder(name)
            if file.is_file():
                shutil.copyfile(file, self.add(path))
            if Path(path).exists():
                continue
            if not file.is_file():
                missing.append(path)
                continue
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            staged = Path(f"{path}.segue")
            shutil.copyfile(file, staged)
            staged.replace(path)
        if missing:
            shown = ", ".join([*missing[:_MOST_NAMED], *(["..."] if len(missing) > _MOST_NAMED else [])])
            log.warning("%d files of ModelCheckpoint are not on this machine: %s", len(missing), shown)

    def _copy_of(self, path: Any) -> Path:
        return self._folder / f"{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}.ckpt"


def exported(names: Collection[str]) -> dict[str, str]:
    """For each file of the best models, map its name in an export to the name of the committed file.

    If a file name is unique, the export keeps the file name.
    """
    own = [PurePosixPath(name).name for name in names]
    return {
        short if own.count(short) == 1 else name.removeprefix(f"{_KEPT}/"): name
        for short, name in zip(own, names, strict=True)
    }


def _name_in_folder(name: str) -> str:
    return f"{_KEPT}/{name.removeprefix(_SCHEME)}"
