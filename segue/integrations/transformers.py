"""Trains a `Trainer` of Hugging Face transformers in segments, with the checkpoint folder that the Trainer writes."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from segue.errors import SessionError
from segue.hosting import host_here
from segue.sessions import Session

LOSSES_NAME = ".segue-losses.json"
"""Name of the file with the losses in a committed folder. The Trainer does not read this file."""
log = logging.getLogger(__name__)

_BEST = "segue-best"
_OF_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", TRAINER_STATE_NAME)
"""Prefixes of the names of files that only a continued training needs, and that the model itself does not need."""


def calling_trainer() -> Any:
    """Return the Trainer that called the current callback. If no Trainer called the callback, return None."""
    frame = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), Trainer):
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals["self"] if frame is not None else None


class LossesToLog:
    """The sum of losses from which a Trainer computes the next `loss` in its log.

    Without this sum, the first log after a resume is wrong.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @classmethod
    def of(cls, trainer: Any) -> Self | None:
        """Return the losses of this Trainer.

        If the installed version of transformers gives no access to the losses, return None.
        """
        summed, last = getattr(trainer, "_tr_loss", None), getattr(trainer, "_globalstep_last_logged", None)
        return cls(trainer) if isinstance(summed, torch.Tensor) and isinstance(last, int) else None

    def to_bytes(self) -> bytes:
        """Return the losses as the content of the file `LOSSES_NAME`."""
        summed = float(self._trainer._tr_loss).hex()
        return (json.dumps({"sum": summed, "since_step": self._trainer._globalstep_last_logged}) + "\n").encode()

    def restore(self, folder: Path) -> None:
        """Continue with the sum of losses from a restored folder.

        If an older version of segue wrote the folder, the folder contains no losses, and nothing changes.
        """
        file = folder / LOSSES_NAME
        if file.is_file():
            found = json.loads(file.read_text(encoding="utf-8"))
            self._trainer._tr_loss.fill_(float.fromhex(found["sum"]))
            self._trainer._globalstep_last_logged = int(found["since_step"])


_TIMES = ("_runtime", "_per_second")
"""Suffixes of the names of metrics that the Trainer measures with the clock, and that differ between equal runs."""


class SegueCallback(TrainerCallback):
    """Trains a Hugging Face `Trainer` as a program of a run.

    The run saves, ends and resumes at safe points between steps. Write `trainer = Trainer(..., callbacks=[callback])`,
    then `trainer.train(resume_from_checkpoint=callback.checkpoint)`. The state of the run is the folder
    `checkpoint-<step>` that the Trainer writes, and the random streams. Outside a segment the callback does nothing.

    The run commits the weights of the Trainer's best checkpoint together with this folder. A resume on any machine
    writes these weights to the path where the Trainer expects them, so that `load_best_model_at_end` works.

    The run also commits the losses since the Trainer's last log. The loss of a step is the mean of `loss` in the
    model's output. If a model returns no loss, the run records the loss 0, and resumes are checked by the norms of
    gradients and weights.
    """

    def __init__(self) -> None:
        self._run = Session(host_here())
        self._steps: Iterator[int] = iter(())
        self._losses: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._extra: Path | None = None
        """A folder that the Trainer wrote only for a save of the run."""
        self._best: str | None = None
        """The path to which a resume has written the best checkpoint."""
        self._limits: list[int | None] = []
        """The user's `save_total_limit`, while the Trainer writes a folder only for the run.

        At other times, the list is empty.
        """
        self._to_log: LossesToLog | None = None
        self.checkpoint: str | None = None
        """The folder from which the Trainer must resume.

        The constructor of the Trainer sets this value. In a new run, the value is None.
        """

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the Trainer was constructed, write the folder of the newest commit."""
        restored = self._run.restore_folder(Path(args.output_dir or ".") / "segue-resumed")
        if restored is not None:
            self.checkpoint = str(restored)
            self._best = put_best(restored, Path(args.output_dir or "."))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the run measure the model and its optimizer."""
        if not self._run.is_active:
            return
        self._run.require_restored(state.global_step, call="trainer.train(resume_from_checkpoint=callback.checkpoint)")
        if self._best is not None:
            state.best_model_checkpoint = self._best
        trainer = calling_trainer()
        if self._run.has_ended_early:
            trainer.get_batch_samples = _no_batches
        self._to_log = LossesToLog.of(trainer)
        if self._to_log is not None and self.checkpoint is not None:
            self._to_log.restore(Path(self.checkpoint))
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._run.measure(model=model, optimizer=getattr(optimizer, "optimizer", optimizer))
        self._handles.append(model.register_forward_hook(self._note_loss))
        self._steps = self._run.steps(state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Run the safe point before the step."""
        if next(self._steps, None) is None and self._run.is_active:
            what = f"the Trainer makes step {state.global_step + 1} after the end of the run."
            raise SessionError(what=what, fix="install transformers 5 or newer.")
        self._losses.clear()
        self._end_asking(args)
        self._remove_extra(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the step. If the run needs a save, let the Trainer write its folder."""
        if not self._run.is_active:
            return
        self._run.report(loss=torch.stack(self._losses).double().mean() if self._losses else 0.0)
        if self._run.should_save:
            self._ask_for_folder(args, state, control)
        self._log_with_save(control)
        if self._run.goal is not None and state.global_step >= self._run.goal:
            control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """If the run cannot commit the losses, let the Trainer log before it saves or evaluates."""
        if self._run.has_ended_early:
            control.should_evaluate = control.should_save = control.should_log = False
            control.should_training_stop = True
        elif self._run.is_active:
            self._log_with_save(control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save after each evaluation and record the metric, because the Trainer may stop after an evaluation."""
        if not self._run.is_active:
            return
        self._ask_for_folder(args, state, control)
        name = args.metric_for_best_model or "loss"
        metric = kwargs.get("metrics", {}).get(name if name.startswith("eval_") else f"eval_{name}")
        if metric is not None:
            self._run.save_best(metric)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Commit the folder that the Trainer wrote."""
        folder = self._folder_of(args, state)
        if not self._limits and folder == self._extra:
            self._extra = None  # At the end of an epoch, the Trainer writes the same folder again for the user.
        self._end_asking(args)
        if self._run.is_active:
            known = state.best_model_checkpoint
            best, beside = best_files(Path(known), folder) if known else ({}, {})
            trainer_state = _without_times(folder / TRAINER_STATE_NAME)
            to_log = {LOSSES_NAME: self._to_log.to_bytes()} if self._to_log is not None else {}
            instead: dict[str, bytes | Path] = {TRAINER_STATE_NAME: trainer_state, **to_log, **beside}
            self._run.commit_folder(folder, instead=instead, best=best)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the last step."""
        if self._run.goal is not None and state.global_step < self._run.goal and not self._run.should_stop:
            self._run.finish(f"the Trainer ended at step {state.global_step}")
        next(self._steps, None)
        self._remove_extra(state)
        for handle in self._handles:
            handle.remove()

    def _ask_for_folder(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if not control.should_save:
            self._extra = self._folder_of(args, state)
            # With a limit, the Trainer would delete folders of the user because of this folder.
            self._limits.append(args.save_total_limit)
            args.save_total_limit = None
        control.should_save = True

    def _log_with_save(self, control: TrainerControl) -> None:
        """If the run cannot commit the losses since the last log, let the Trainer log with each save and evaluation."""
        if self._to_log is None:
            control.should_log = control.should_log or control.should_save or control.should_evaluate

    def _end_asking(self, args: TrainingArguments) -> None:
        if self._limits:
            args.save_total_limit = self._limits.pop()

    def _remove_extra(self, state: TrainerState) -> None:
        """Delete the extra folder that the Trainer wrote only so that the run could commit.

        If the folder is the best one, keep it, because the Trainer may load it.
        """
        if self._extra is not None and self._extra != Path(state.best_model_checkpoint or ""):
            shutil.rmtree(self._extra, ignore_errors=True)
        self._extra = None

    @staticmethod
    def _folder_of(args: TrainingArguments, state: TrainerState) -> Path:
        return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"

    def _note_loss(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if model.training and isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())


def _no_batches(*_: Any) -> tuple[list[Any], None]:
    """Replaces `get_batch_samples` of a Trainer, so that the Trainer gets no batches.

    A Trainer stops only after a step, and without a batch it makes no step.
    """
    return [], None


def _without_times(file: Path) -> bytes:
    """Return the Trainer's state without the metrics that the Trainer measures with the clock."""
    state = json.loads(file.read_text(encoding="utf-8"))
    state["log_history"] = [
        {name: value for name, value in entry.items() if not name.endswith(_TIMES)} for entry in state["log_history"]
    ]
    return (json.dumps(state, indent=2, sort_keys=True) + "\n").encode()


def best_files(best: Path, folder: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the names of the best model's files, and the files to commit in addition to the folder.

    The first mapping maps the name of each file to its committed name. If the folder itself is the best
    checkpoint, the second mapping is empty. If the best checkpoint no longer exists, both mappings are empty.
    """
    if best.name == folder.name:
        return {name: name for name in _model_files(folder)}, {}
    names = {name: f"{_BEST}/{name}" for name in _model_files(best)}
    return names, {committed: best / name for name, committed in names.items()}


def put_best(restored: Path, output: Path) -> str | None:
    """Write the best checkpoint of a restored folder below the Trainer's output folder.

    Return the path of the best checkpoint. If the Trainer had no best checkpoint, return None. If a crash interrupts
    the write, the next start writes the best checkpoint again.
    """
    state = json.loads((restored / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    known = state.get("best_model_checkpoint")
    if not known:
        return None
    name = Path(known).name
    place = output / name
    source = restored if name == f"checkpoint-{state['global_step']}" else restored / _BEST
    names = [*_model_files(source)]
    if not names and not place.is_dir():
        log.warning("the best checkpoint was not committed and is not on this machine: %s", place)
    for each in names:
        _put(source / each, place / each)
    return str(place)


def _model_files(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        return
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith((*_OF_TRAINING, ".segue", f"{_BEST}/")):
            yield name


def _put(source: Path, place: Path) -> None:
    """If the file does not have the committed bytes, write it again, because a kill may have cut the file off."""
    if place.is_file() and filecmp.cmp(source, place, shallow=False):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".segue-{place.name}")
    shutil.copyfile(source, temporary)
    temporary.replace(place)
