"""One optimizer step of a recipe, and what it looked like from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from segue.errors import LossError
from segue.recipe import Recipe, in_words, short_path
from segue.trainer.ranks.consensus import Outcome
from segue.trainer.ranks.ddp import bare, parameter_norm, total_norm
from segue.trainer.workloads.own_step import do_own_step
from segue.trainer.workloads.step_result import StepResult, follow, rates_of


def do_step(
    recipe: Recipe,
    batches: Sequence[Any],
    *,
    step: int,
    weights: Sequence[float] | None = None,
    ends_epoch: bool = False,
    before_update: Callable[[], None] = lambda: None,
    with_norms: bool = True,
) -> StepResult:
    """Forward and backward for each batch, then clip, update, schedule; `step` is the global step this makes.

    The gradient is the mean over the batches. `before_update` is called when it is there, also if a scaler then skips
    the update. Without `with_norms` no norm is measured that the recipe does not use itself. With several ranks the
    gradient becomes the mean over them; `weights`, one for each batch, make it the mean over their samples.

    Raises:
        LossError: the loss function returned no scalar tensor with a gradient; no parameter was changed.
    """
    if recipe.step is not None:
        (content,) = batches
        return do_own_step(
            recipe, content, step=step, ends_epoch=ends_epoch, before_update=before_update, with_norms=with_norms
        )
    (optimizer,) = recipe.optimizers.values()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    scaler = recipe.scaler
    loss_scale = float(scaler.get_scale()) if scaler is not None else None
    losses: list[torch.Tensor] = []
    parts: list[dict[str, torch.Tensor]] = []
    weights = weights if weights is not None else [1.0] * len(batches)
    for content, weight in zip(batches, weights, strict=True):
        loss, named = _parts(recipe.loss(recipe.model, content), recipe)
        share = weight / len(batches)
        weighted = loss if share == 1.0 else loss * share
        (scaler.scale(weighted) if scaler is not None else weighted).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        parts.append(named)
    if scaler is not None:
        scaler.unscale_(optimizer)
    as_in_model = _in_order_of_model(recipe, parameters)
    norm: torch.Tensor | None = None
    if with_norms or recipe.clip_grad_norm is not None or recipe.gives_metrics:
        norm = total_norm([p.grad for p in as_in_model if p.grad is not None])
    if recipe.clip_grad_norm is not None:
        assert norm is not None
        torch.nn.utils.clip_grads_with_norm_(as_in_model, recipe.clip_grad_norm, norm)
    before_update()
    lr = rates_of(optimizer)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    loss_value, part_values = _mean(losses, weights), _means(parts)
    grad_norm = None if norm is None else float(norm)
    metrics = {"loss": loss_value} | ({} if grad_norm is None else {"grad_norm": grad_norm}) | part_values
    follow(recipe, step=step, ends_epoch=ends_epoch, metrics=metrics)
    param_norm = float(parameter_norm([p.detach() for p in parameters])) if with_norms else None
    return StepResult(Outcome(loss_value, grad_norm, param_norm, lr, loss_scale), part_values)


def _mean(losses: Sequence[torch.Tensor], weights: Sequence[float]) -> float:
    if len(losses) == 1:
        return float(losses[0])
    total = sum(weights)
    return sum(float(loss) * weight for loss, weight in zip(losses, weights, strict=True)) / total if total else 0.0


def _means(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in parts for name in each)
    found = {name: [float(each[name]) for each in parts if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _parts(value: Any, recipe: Recipe) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss itself, and its named parts where the loss function returns a dict."""
    if not isinstance(value, dict):
        return _usable(value, recipe), {}
    tensors = {str(name): part for name, part in value.items() if isinstance(part, torch.Tensor) and part.numel() == 1}
    total = value.get("loss", sum(part for part in tensors.values() if part.requires_grad))
    return _usable(total, recipe), {name: part.detach() for name, part in tensors.items() if name != "loss"}


def _in_order_of_model(recipe: Recipe, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """The optimizer's parameters in the order in which `clip_grad_norm_(model.parameters())` sums their norms.

    Another order rounds to other bits. Parameters that only the model has are left out: no optimizer clears their
    gradients, so they grow from step to step, and no checkpoint has them.
    """
    held = {id(parameter): parameter for parameter in parameters}
    first = [held.pop(id(parameter)) for parameter in bare(recipe.model).parameters() if id(parameter) in held]
    return [*first, *held.values()]


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
        elif isinstance(getattr(loss, "loss", None), torch.Tensor):
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
    code = getattr(loss, "__code__", None)
    where = "" if code is None else f" ({short_path(Path(code.co_filename))}, line {code.co_firstlineno})"
    return f"Recipe.loss{where}"
