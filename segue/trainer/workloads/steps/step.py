"""One optimizer step of a recipe, and the measured result of the step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from segue.errors import LossError
from segue.recipe import Recipe
from segue.trainer.ranks.ddp import bare, norm_and_clip, parameters_of
from segue.trainer.ranks.own_time import OwnTime
from segue.trainer.workloads.steps.own_step import begin_own_step
from segue.trainer.workloads.steps.step_result import Shown, StepBegun, ended, rates_of, scale_of
from segue.user_objects import attribute, in_words
from segue.user_objects.users_files import short_path


class ParameterOrder:
    """The optimizer's parameters in the order in which `clip_grad_norm_(model.parameters())` sums their norms.

    A different order changes the rounding. Parameters that no optimizer holds are left out. No optimizer clears the
    gradients of these parameters, so the gradients grow from step to step, and are in no checkpoint. The model is
    traversed only if the optimizer's parameters have changed, or after a call of `look_again`.
    """

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []
        self._ordered: list[torch.Tensor] = []

    def of(self, model: torch.nn.Module, held: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the optimizer's parameters `held` in the order of the model."""
        if len(held) != len(self._held) or not all(map(operator.is_, held, self._held)):
            left = {id(parameter): parameter for parameter in held}
            first = [left.pop(id(parameter)) for parameter in parameters_of(bare(model)) if id(parameter) in left]
            self._held, self._ordered = list(held), [*first, *left.values()]
        return self._ordered

    def look_again(self) -> None:
        """Traverse the model again at the next step, because a resume from this step would also traverse it."""
        self._held, self._ordered = [], []


def begin_step(
    recipe: Recipe,
    batches: Sequence[Any],
    *,
    step: int,
    weights: Sequence[float] | None = None,
    ends_epoch: bool = False,
    before_update: Callable[[], None] = lambda: None,
    with_norms: bool = True,
    order: ParameterOrder | None = None,
    own_time: OwnTime | None = None,
) -> StepBegun:
    """Run the forward and backward pass for each batch. Then clip the gradients, update the parameters, and step the
    schedulers. `step` is the global step.

    On return, all work is done or queued on the accelerator. The call waits for the accelerator only if the recipe
    itself waits, or if its `after_step` takes metrics.

    The gradient is the mean over the batches. `before_update` is called after the gradient is complete, even if a
    scaler then skips the update. If `with_norms` is False, only the norms that the recipe itself uses are measured. If
    there are several ranks, the gradient is the mean over the ranks. If `weights` has a weight for each batch, the
    gradient is the mean over all samples. `own_time` stops at the end of each backward pass.

    Raises:
        LossError: the loss function returned no scalar tensor with a gradient; no parameter was changed.
    """
    if recipe.step is not None:
        (content,) = batches
        return begin_own_step(
            recipe, content, step=step, ends_epoch=ends_epoch, before_update=before_update, with_norms=with_norms
        )
    (optimizer,) = recipe.optimizers.values()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    scaler = recipe.scaler
    scale = scale_of(scaler)
    weights = weights if weights is not None else (1.0,) * len(batches)
    losses, parts = _backward(recipe, batches, weights, own_time)
    if scaler is not None:
        scaler.unscale_(optimizer)
    norms: list[torch.Tensor] = []
    if with_norms or recipe.clip_grad_norm is not None or recipe.gives_metrics:
        ordered = (order or ParameterOrder()).of(recipe.model, parameters)
        norms.append(norm_and_clip(ordered, limit=recipe.clip_grad_norm))
    before_update()
    rates = rates_of(optimizer)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()

    # All numbers are read together, because each read waits for an accelerator.
    asked = [*losses, *norms, *(part for named in parts for part in named.values())]

    def shown(values: list[float]) -> Shown:
        return Shown(
            loss=_mean(values[: len(losses)], weights),
            grad_norm=values[len(losses)] if norms else None,
            parts=_means(parts, values[len(losses) + len(norms) :]) if parts else {},
        )

    return ended(
        recipe,
        asked,
        shown,
        step=step,
        ends_epoch=ends_epoch,
        rates=rates,
        scale=scale,
        measured=parameters if with_norms else None,
    )


def _backward(
    recipe: Recipe, batches: Sequence[Any], weights: Sequence[float], own_time: OwnTime | None
) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Run the backward pass for each batch. Return the loss of each batch, and the named parts of the losses."""
    losses: list[torch.Tensor] = []
    parts: list[dict[str, torch.Tensor]] = []
    scaler = recipe.scaler
    for content, weight in zip(batches, weights, strict=True):
        if own_time is not None and losses:
            own_time.resume()
        loss, named = _parts(recipe.loss(recipe.model, content), recipe)
        share = weight / len(batches)
        weighted = loss if share == 1.0 else loss * share
        (scaler.scale(weighted) if scaler is not None else weighted).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        if named:
            parts.append(named)
    return losses, parts


def _mean(losses: Sequence[float], weights: Sequence[float]) -> float:
    if len(losses) == 1:
        return losses[0]
    total = sum(weights)
    return sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / total if total else 0.0


def _means(parts: Sequence[dict[str, torch.Tensor]], numbers: Sequence[float]) -> dict[str, float]:
    """Mean of each part, by name. `numbers` contains one number for each value in `parts`, in the same order."""
    found: dict[str, list[float]] = {}
    for name, number in zip((name for named in parts for name in named), numbers, strict=True):
        found.setdefault(name, []).append(number)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _parts(value: Any, recipe: Recipe) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss, and its named parts if the loss function returns a dict."""
    if not isinstance(value, dict):
        return _usable(value, recipe), {}
    tensors = {str(name): part for name, part in value.items() if isinstance(part, torch.Tensor) and part.numel() == 1}
    total = value.get("loss", sum(part for part in tensors.values() if part.requires_grad))
    return _usable(total, recipe), {name: part.detach() for name, part in tensors.items() if name != "loss"}


def _usable(loss: Any, recipe: Recipe) -> torch.Tensor:
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
        return loss
    if not isinstance(loss, torch.Tensor):
        found = in_words(loss)
        fix = "return the loss tensor itself"
        if loss is None:
            fix = "end the function with `return loss`"
        elif isinstance(loss, (int, float)):
            fix = "return the tensor, not loss.item() or float(loss)"
        elif isinstance(attribute(loss, "loss"), torch.Tensor):
            fix = "return its field .loss"
    elif loss.numel() != 1:
        found = f"a tensor of shape {list(loss.shape)}"
        fix = "reduce it to one number, e.g. by loss.mean()"
    else:
        found = "a tensor without a gradient (no grad_fn)"
        fix = (
            "compute it from the model's output, without .detach(), .item() and torch.no_grad(), and leave some of "
            "the model's parameters trainable"
        )
    raise LossError(loss=_name_of(recipe.loss), found=found, fix=fix)


def _name_of(loss: Any) -> str:
    code = attribute(loss, "__code__")
    where = "" if code is None else f" ({short_path(Path(code.co_filename))}, line {code.co_firstlineno})"
    return f"Recipe.loss{where}"
