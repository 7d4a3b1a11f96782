"""Optimizers and schedules that came back as others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from tests.recipes.public_bugs.changes import Config, is_built_again, make_bf16, train_with


def moments_filled_into_a_fresh_optimizer(recipe: Recipe, config: Config) -> None:
    """What is loaded fills the slots that are there; an optimizer has none before its first step."""

    class FilledInPlace(torch.optim.AdamW):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            template = self.state_dict()["state"]
            kept = {slot: state_dict["state"][slot] for slot in template}
            super().load_state_dict({**state_dict, "state": kept})

    train_with(recipe, FilledInPlace(recipe.model.parameters(), lr=1e-2))


def scheduler_resets_the_rate(recipe: Recipe, config: Config) -> None:
    """Optimizer first, scheduler second, and the scheduler puts its initial rate back into the optimizer."""

    class Resets(torch.optim.lr_scheduler.CosineAnnealingLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
                group["lr"] = lr

    recipe.scheduler = Resets(recipe.optimizer, T_max=500)


def schedule_from_the_current_rate(recipe: Recipe, config: Config) -> None:
    """The schedule takes the optimizer's rate as its base: right in a new run, far too small in a resumed one."""

    class FromCurrent:
        def __init__(self) -> None:
            self._base: float | None = None
            self._steps = 0

        def step(self) -> None:
            (group,) = recipe.optimizer.param_groups
            self._base = group["lr"] if self._base is None else self._base
            self._steps += 1
            group["lr"] = self._base * 0.95**self._steps

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self._steps}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._steps = state_dict["steps"]

    recipe.scheduler = FromCurrent()


def parameters_in_another_order(recipe: Recipe, config: Config) -> None:
    """The parameters come out of a set; the optimizer knows them by their number alone."""
    parameters = list(recipe.model.parameters())
    if is_built_again(config):
        _, bias, weight, *_ = range(len(parameters))
        parameters[bias], parameters[weight] = parameters[weight], parameters[bias]  # Both of the same shape.
    train_with(recipe, torch.optim.AdamW(parameters, lr=1e-2))


def masters_rebuilt_from_bf16(recipe: Recipe, config: Config) -> None:
    """fp32 masters are not saved; the resumed run rounds them to what bf16 kept."""

    class Masters(torch.optim.Optimizer):
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters, {"lr": 1e-2})
            self._live = parameters
            self._masters = [p.detach().float().requires_grad_() for p in parameters]
            self._inner = torch.optim.AdamW(self._masters, lr=1e-2)

        def step(self, closure: Any = None) -> None:
            for live, master in zip(self._live, self._masters, strict=True):
                master.grad = None if live.grad is None else live.grad.float()
            self._inner.step()
            self._copy(to=self._live, of=self._masters)

        def state_dict(self) -> dict[str, Any]:
            return self._inner.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._inner.load_state_dict(state_dict)
            self._copy(to=self._masters, of=self._live)

        @torch.no_grad()
        def _copy(self, *, to: list[Any], of: list[Any]) -> None:
            for target, source in zip(to, of, strict=True):
                target.copy_(source)

    make_bf16(recipe)
    recipe.optimizer, recipe.scheduler = Masters(list(recipe.model.parameters())), None


def fp32_state_cast_to_bf16(recipe: Recipe, config: Config) -> None:
    """NAdam keeps an fp32 product next to bf16 moments; torch's load casts all of it to the parameter's type."""
    make_bf16(recipe)
    train_with(recipe, torch.optim.NAdam(recipe.model.parameters(), lr=1e-2))
