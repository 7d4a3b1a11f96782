"""A step that the recipe itself makes, with one or more optimizers. Segue measures the step with torch's step hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from segue.errors import LossError
from segue.recipe import Recipe
from segue.trainer.ranks.ddp import total_norm
from segue.trainer.workloads.steps.step_result import Number, Shown, StepBegun, ended, rates_of, scale_of
from segue.user_objects import attribute, in_words


def begin_own_step(
    recipe: Recipe,
    content: Any,
    *,
    step: int,
    ends_epoch: bool,
    before_update: Callable[[], None],
    with_norms: bool = True,
) -> StepBegun:
    """Call the recipe's `step` on a batch, then its schedulers and `after_step`.

    The gradient norm includes the gradients of all optimizers, each measured when its own optimizer updates.
    `before_update` is called before each update.

    Raises:
        LossError: the recipe's `step` returned no number.
    """
    assert recipe.step is not None
    scale = scale_of(recipe.scaler)
    measures = with_norms or recipe.gives_metrics
    with _watched(recipe, before_update, with_norms=measures) as seen:
        value = recipe.step(recipe.model, content, recipe.optimizer)
    names, given = _named(value)
    rates = [rate for each in recipe.optimizers.values() for rate in seen.rates.get(id(each), rates_of(each))]

    def shown(values: list[float]) -> Shown:
        parts = dict(zip(names, values, strict=False))
        loss = parts.get("loss", sum(parts.values()))
        grad_norm = math.hypot(*values[len(names) :]) if measures else None
        if not isinstance(value, Mapping):
            return Shown(loss, grad_norm, {})
        return Shown(loss, grad_norm, {name: part for name, part in parts.items() if name != "loss"})

    return ended(
        recipe,
        [*given, *seen.norms],
        shown,
        step=step,
        ends_epoch=ends_epoch,
        rates=rates,
        scale=scale,
        measured=held_by_optimizers(recipe) if with_norms else None,
    )


@dataclass
class _Seen:
    """Values measured at the updates of the optimizers."""

    norms: list[torch.Tensor] = field(default_factory=list)
    rates: dict[int, list[Number]] = field(default_factory=dict)


@contextmanager
def _watched(recipe: Recipe, before_update: Callable[[], None], *, with_norms: bool) -> Iterator[_Seen]:
    seen = _Seen()
    # A wrapper has its inner optimizer in `optimizer`, and the inner optimizer makes the updates.
    own = {id(attribute(each, "optimizer", each)): id(each) for each in recipe.optimizers.values()}

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in own:
            if with_norms:
                gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
                seen.norms.append(total_norm(gradients))
            seen.rates[own[id(optimizer)]] = rates_of(optimizer)

    hooks = (
        register_optimizer_step_pre_hook(lambda *_: before_update()),
        register_optimizer_step_post_hook(after),
    )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _named(value: Any) -> tuple[list[str], list[Number]]:
    """Names and values of the numbers that `step` returns. `step` returns the loss alone, or a dict with `loss` or with
    the parts of the loss."""
    if not isinstance(value, Mapping):
        return ["loss"], [_usable(value)]
    return [str(name) for name in value], [_usable(part) for part in value.values()]


def _usable(value: Any) -> Number:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    fix = "return the loss of the step, or a dict of losses, as tensors of one element or as numbers"
    found = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else in_words(value)
    raise LossError(loss="Recipe.step", found=found, fix=fix, needed="its row needs a number")


def held_by_optimizers(recipe: Recipe) -> list[torch.Tensor]:
    """All parameters of the optimizers in the order of their groups, each parameter once."""
    groups = [group for optimizer in recipe.optimizers.values() for group in optimizer.param_groups]
    return list({id(parameter): parameter for group in groups for parameter in group["params"]}.values())


def are_held_in_order(recipe: Recipe, model: nn.Module) -> bool:
    """Whether the optimizers hold their parameters in the model's order."""
    held = [id(parameter) for parameter in held_by_optimizers(recipe)]
    return held == [number for number in map(id, model.parameters()) if number in set(held)]
