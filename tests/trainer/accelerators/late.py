"""Recipes whose steps show their numbers late, as on an accelerator: the values are copied at once, and read later."""

from __future__ import annotations

from typing import Any

import torch

from segue.recipe import Recipe, import_build
from segue.trainer.workloads.steps import step_result

OWN = {"inner", "is_late", "raises_after_nan"}
_sent = step_result.sent


def build(config: dict[str, Any]) -> Recipe:
    """Config: inner (path of the recipe), is_late, raises_after_nan (the code checks its weights before each step)."""
    step_result.sent = _late if config.get("is_late", True) else _sent
    inner = {name: value for name, value in config.items() if name not in OWN}
    recipe = import_build(config["inner"])(inner)
    if config.get("raises_after_nan"):
        loss = recipe.loss

        def checked(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
                raise ArithmeticError("the weights are not finite")
            return loss(model, batch)

        recipe.loss = checked
    return recipe


def _late(asked: Any) -> step_result.Numbers:
    values = [number.detach().clone() if isinstance(number, torch.Tensor) else number for number in asked]
    return step_result.Numbers(lambda: [float(value) for value in values], is_late=True)
