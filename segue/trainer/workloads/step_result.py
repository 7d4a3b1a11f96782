"""What every kind of step has in common: its result, what follows it, and its batch on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.recipe import Recipe
from segue.trainer.ranks.consensus import Outcome


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


def follow(recipe: Recipe, *, step: int, ends_epoch: bool, metrics: dict[str, float]) -> None:
    """What follows an update: the schedulers, then the recipe's `after_step`."""
    if ends_epoch or recipe.scheduler_every != "epoch":
        for scheduler in recipe.schedulers.values():
            scheduler.step()
    if recipe.after_step is not None and recipe.gives_metrics:
        recipe.after_step(step, metrics=metrics)
    elif recipe.after_step is not None:
        recipe.after_step(step)


def to_device(content: Any, device: torch.device) -> Any:
    """A batch with its tensors on `device`; lists, tuples and mappings keep their type."""
    if device.type == "cpu":
        return content
    if isinstance(content, torch.Tensor):
        return content.to(device, non_blocking=True)
    if isinstance(content, Mapping):
        return type(content)({key: to_device(value, device) for key, value in content.items()})  # type: ignore[call-arg]
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(to_device(item, device) for item in content))
    if isinstance(content, (list, tuple)):
        return type(content)(to_device(item, device) for item in content)
    return content
