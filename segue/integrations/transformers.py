"""Hugging Face `Trainer`: its loop, its arguments and its checkpoint folder, in segments."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from segue.sessions import Session, host_here


class SegueCallback(TrainerCallback):
    """Trains a `Trainer` as a program of a run: saves, ends and resumes at safe points between its steps.

    `trainer = Trainer(..., callbacks=[callback])`, then `trainer.train(resume_from_checkpoint=callback.checkpoint)`.
    The state is the folder `checkpoint-<step>` that the Trainer writes, and the random streams. Outside a segment the
    callback does nothing.

    A save also makes the Trainer log: the losses since the last log would be lost with the process. The loss of a step
    is the mean of `loss` in what the model returns; a model that returns none has 0 there, and its resumes are proven
    from the norms of gradients and parameters.
    """

    def __init__(self) -> None:
        self._run = Session(host_here())
        self._steps: Iterator[int] = iter(())
        self._losses: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._asked_for: Path | None = None
        """A folder that the Trainer writes only for the run."""
        self.checkpoint: str | None = None
        """The folder from which to resume, once the Trainer is there; None in a new run."""

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the folder of the newest commit."""
        restored = self._run.restore_folder(Path(args.output_dir or ".") / "segue-resumed")
        self.checkpoint = str(restored) if restored is not None else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the model and its optimizer from now on."""
        if not self._run.is_active:
            return
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._run.measure(model=model, optimizer=getattr(optimizer, "optimizer", optimizer))
        self._handles.append(model.register_forward_hook(self._note_loss))
        self._steps = self._run.steps(state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The safe point."""
        next(self._steps, None)
        self._losses.clear()
        if self._asked_for is not None:
            shutil.rmtree(self._asked_for, ignore_errors=True)  # It is committed, and the user did not ask for it.
            self._asked_for = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the step; have the Trainer write its folder where the run needs it."""
        if not self._run.is_active:
            return
        self._run.report(loss=torch.stack(self._losses).double().mean() if self._losses else 0.0)
        if self._run.should_save:
            self._ask_for_folder(args, state, control)
            control.should_log = True
        if self._run.goal is not None and state.global_step >= self._run.goal:
            control.should_training_stop = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save after each evaluation, for it may be the reason why the Trainer ends early; note the metric."""
        if not self._run.is_active:
            return
        self._ask_for_folder(args, state, control)
        name = args.metric_for_best_model or "loss"
        metric = kwargs.get("metrics", {}).get(name if name.startswith("eval_") else f"eval_{name}")
        if metric is not None:
            self._run.save_best(metric)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Hand the folder over."""
        self._run.commit_folder(self._folder_of(args, state))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the last step."""
        if self._run.goal is not None and state.global_step < self._run.goal and not self._run.should_stop:
            self._run.finish(f"the Trainer ended at step {state.global_step}")
        next(self._steps, None)
        for handle in self._handles:
            handle.remove()

    def _ask_for_folder(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if not control.should_save:
            self._asked_for = self._folder_of(args, state)
        control.should_save = True

    @staticmethod
    def _folder_of(args: TrainingArguments, state: TrainerState) -> Path:
        return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"

    def _note_loss(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if model.training and isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
