"""One optimizer step of a recipe, and what it looked like from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from segue.errors import LossError
from segue.recipe import Recipe, in_words, short_path
from segue.trainer.ranks.consensus import Outcome
from segue.trainer.ranks.ddp import bare, parameter_norm, total_norm


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

    Raises:
        LossError: the loss function returned no scalar tensor with a gradient; no parameter was changed.
    """
    parameters = [p for group in recipe.optimizer.param_groups for p in group["params"]]
    recipe.optimizer.zero_grad(set_to_none=True)
    loss = _usable(recipe.loss(recipe.model, content), recipe)
    scaler = recipe.scaler
    loss_scale = float(scaler.get_scale()) if scaler is not None else None
    weighted = loss if weight == 1.0 else loss * weight
    (scaler.scale(weighted) if scaler is not None else weighted).backward()  # type: ignore[no-untyped-call]
    if scaler is not None:
        scaler.unscale_(recipe.optimizer)
    as_in_model = _in_order_of_model(recipe, parameters)
    grad_norm = total_norm([p.grad for p in as_in_model if p.grad is not None])
    if recipe.clip_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(as_in_model, recipe.clip_grad_norm, grad_norm)
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
