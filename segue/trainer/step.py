"""One optimizer step of a recipe, and what it looked like from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from segue.recipe import Recipe
from segue.trainer.ranks.ddp import parameter_norm, total_norm


class Outcome(NamedTuple):
    """Numbers of one step, in full precision."""

    loss: float
    grad_norm: float
    param_norm: float
    lr: tuple[float, ...]
    loss_scale: float | None


def do_step(
    recipe: Recipe,
    content: Any,
    *,
    step: int,
    weight: float = 1.0,
    before_update: Callable[[], None] = lambda: None,
) -> Outcome:
    """Forward, backward, clip, update, schedule; `step` is the global step this makes.

    `before_update` is called when the gradient is there, also if a scaler then skips the update. With several ranks the
    gradient becomes the mean over them; `weight` makes it the mean over their samples.
    """
    parameters = [p for group in recipe.optimizer.param_groups for p in group["params"]]
    recipe.optimizer.zero_grad(set_to_none=True)
    loss = recipe.loss(recipe.model, content)
    scaler = recipe.scaler
    loss_scale = float(scaler.get_scale()) if scaler is not None else None
    weighted = loss if weight == 1.0 else loss * weight
    (scaler.scale(weighted) if scaler is not None else weighted).backward()  # type: ignore[no-untyped-call]
    if scaler is not None:
        scaler.unscale_(recipe.optimizer)
    gradients = [p.grad for p in parameters if p.grad is not None]
    grad_norm = total_norm(gradients)
    if recipe.clip_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, recipe.clip_grad_norm, grad_norm)
    before_update()
    lr = tuple(float(group["lr"]) for group in recipe.optimizer.param_groups)
    if scaler is not None:
        scaler.step(recipe.optimizer)
        scaler.update()
    else:
        recipe.optimizer.step()
    if recipe.scheduler is not None:
        recipe.scheduler.step()
    if recipe.after_step is not None:
        recipe.after_step(step)
    with torch.no_grad():
        param_norm = parameter_norm([p.detach() for p in parameters])
    return Outcome(float(loss.detach()), float(grad_norm), float(param_norm), lr, loss_scale)


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
