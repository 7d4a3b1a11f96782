"""Code that all kinds of steps share. It makes the result of a step, and does the work after the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.recipe import Recipe
from segue.trainer.ranks.consensus import StepNumbers
from segue.trainer.ranks.ddp import parameter_norm
from segue.trainer.workloads.steps.numbers import Number, as_of_now, on_host, sent
from segue.user_objects import attribute


class StepResult(NamedTuple):
    """The measured result of one step."""

    outcome: StepNumbers
    parts: dict[str, float]
    """Parts of the loss, by name. Each part is the mean over the step's batches. Empty if the recipe does not return a
    dict."""


class StepBegun(NamedTuple):
    """A step whose work on the host is done. An accelerator may still compute."""

    result: StepResult | None
    """The result; None if the numbers of the result are still in an accelerator's memory."""
    read_late: Callable[[], StepResult] | None = None
    """A function that waits for the numbers and returns the result. It is set if `result` is None."""
    is_late: bool = False
    """Whether the accelerator may still compute the numbers."""

    def read(self) -> StepResult:
        """Return the result of the step. If necessary, wait for an accelerator."""
        if self.result is not None:
            return self.result
        assert self.read_late is not None
        return self.read_late()


class Shown(NamedTuple):
    """Numbers of a step that the training code has computed."""

    loss: float
    grad_norm: float | None
    parts: dict[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """These numbers by name, for the recipe's `after_step`."""
        grad_norm = {} if self.grad_norm is None else {"grad_norm": self.grad_norm}
        return {"loss": self.loss} | grad_norm | self.parts


def row_of(prelude: Prelude, outcome: StepNumbers) -> StepRow:
    """Make the row of a step from its inputs and its numbers."""
    loss, grad_norm, param_norm, lr, loss_scale = outcome
    return StepRow(*prelude, loss, grad_norm, param_norm, lr, loss_scale)


def rates_of(optimizer: torch.optim.Optimizer) -> list[Number]:
    """The current learning rate of each group of the optimizer."""
    return as_of_now([group["lr"] for group in optimizer.param_groups])


def scale_of(scaler: torch.amp.GradScaler | None) -> list[Number]:
    """The current loss scale; empty if there is no scaler."""
    if scaler is None:
        return []
    # `get_scale` waits for the accelerator. The tensor is missing before the first use of a scaler, or if it is off.
    scale = attribute(scaler, "_scale")
    return as_of_now([scale if isinstance(scale, torch.Tensor) else scaler.get_scale()])


def ended(
    recipe: Recipe,
    asked: Sequence[Number],
    shown: Callable[[list[float]], Shown],
    *,
    step: int,
    ends_epoch: bool,
    rates: Sequence[Number],
    scale: Sequence[Number],
    measured: list[torch.Tensor] | None,
) -> StepBegun:
    """Do the work after the update, and begin to read the step's numbers.

    `shown` interprets the values of the numbers in `asked`. The function computes the norm of the parameters in
    `measured`; None means no norm. All numbers are read in one copy. But if `after_step` takes metrics, the numbers in
    `asked` are read before `after_step` is called.
    """
    values = on_host(asked)
    if values is not None:
        seen = shown(values)
        follow(recipe, step=step, ends_epoch=ends_epoch, metrics=seen.metrics if recipe.gives_metrics else None)
        param_norm = None if measured is None else float(parameter_norm(measured))
        loss_scale = float(scale[0]) if scale else None
        outcome = StepNumbers(seen.loss, seen.grad_norm, param_norm, tuple(map(float, rates)), loss_scale)
        return StepBegun(StepResult(outcome, seen.parts))
    if recipe.after_step is not None:  # It may change the recipe's tensors in place.
        asked = as_of_now(asked)
    early = shown(sent(asked).read()) if recipe.gives_metrics else None
    follow(recipe, step=step, ends_epoch=ends_epoch, metrics=None if early is None else early.metrics)
    norm = [] if measured is None else [parameter_norm(measured)]
    late = sent([*rates, *scale, *norm, *(() if early is not None else asked)])

    def read() -> StepResult:
        found = iter(late.read())
        own_rates, own_scale = list(islice(found, len(rates))), list(islice(found, len(scale)))
        param_norm = next(found) if norm else None
        seen = early if early is not None else shown(list(found))
        outcome = StepNumbers(
            seen.loss, seen.grad_norm, param_norm, tuple(own_rates), own_scale[0] if own_scale else None
        )
        return StepResult(outcome, seen.parts)

    return StepBegun(None, read, late.is_late)


def follow(recipe: Recipe, *, step: int, ends_epoch: bool, metrics: dict[str, float] | None) -> None:
    """Do the work after an update. Step the schedulers that take no metric, and then call the recipe's `after_step`.

    If `metrics` is not None, `after_step` gets the metrics.
    """
    if ends_epoch or recipe.scheduler_every != "epoch":
        for name, scheduler in recipe.schedulers.items():
            if name not in recipe.by_metric:
                scheduler.step()
    if recipe.after_step is not None and metrics is not None:
        recipe.after_step(step, metrics=metrics)
    elif recipe.after_step is not None:
        recipe.after_step(step)
