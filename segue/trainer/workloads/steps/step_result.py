"""What every kind of step has in common: its result, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.recipe import Recipe
from segue.trainer.ranks.consensus import Outcome

_WITHIN_FP32 = (torch.float32, torch.bfloat16, torch.float16)


class StepResult(NamedTuple):
    """What one step looked like."""

    outcome: Outcome
    parts: dict[str, float]
    """Parts of the loss, by name, if the recipe returns a dict; the mean over the step's batches."""


def row_of(prelude: Prelude, outcome: Outcome) -> StepRow:
    """The row of a step."""
    loss, grad_norm, param_norm, lr, loss_scale = outcome
    return StepRow(*prelude, loss, grad_norm, param_norm, lr, loss_scale)


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """The learning rate of each of its groups."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


def numbers_of(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one element. An accelerator is waited for once: its values are read together."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return together(tensors, tensor.device).tolist()
    return [float(tensor) for tensor in tensors]


def together(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Tensors of one element as one on `device`, in a type that holds each value exactly."""
    kind = torch.float32 if all(tensor.dtype in _WITHIN_FP32 for tensor in tensors) else torch.float64
    return torch.stack([tensor.detach().reshape(()).to(device, kind) for tensor in tensors])


def follow(recipe: Recipe, *, step: int, ends_epoch: bool, metrics: dict[str, float]) -> None:
    """What follows an update: the schedulers that take no metric, then the recipe's `after_step`."""
    if ends_epoch or recipe.scheduler_every != "epoch":
        for name, scheduler in recipe.schedulers.items():
            if name not in recipe.by_metric:
                scheduler.step()
    if recipe.after_step is not None and recipe.gives_metrics:
        recipe.after_step(step, metrics=metrics)
    elif recipe.after_step is not None:
        recipe.after_step(step)
