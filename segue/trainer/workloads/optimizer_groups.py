"""Optimizers whose parameter groups change during a run. The parameters of each group are saved by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component, OptimizerState

_BOUND = "bound"
"""Key in the saved state. It is used only if the groups have changed, so that all other saved states keep their
bytes."""


def all_optimizers(recipe: Recipe) -> dict[str, Any]:
    """All optimizers of a recipe, including the optimizers in `extra`, by component name."""
    further = {f"extra.{key}": each for key, each in recipe.extra.items() if isinstance(each, torch.optim.Optimizer)}
    return {**recipe.optimizers, **further}


def regrouped(recipe: Recipe, components: Mapping[str, Component]) -> dict[str, Component]:
    """Components of the recipe's torch optimizers. A restore gives each optimizer the groups that the optimizer had at
    the save."""
    modules = {f"extra.{key}.": each for key, each in recipe.extra.items() if isinstance(each, nn.Module)}
    roots = {"": bare(recipe.model)} | modules

    def parameters() -> dict[str, torch.Tensor]:
        found = ((start, *each) for start, root in roots.items() for each in root.named_parameters())
        return {start + name: parameter for start, name, parameter in found}

    found = {name: each for name, each in all_optimizers(recipe).items() if isinstance(each, torch.optim.Optimizer)}
    return {
        name: RegroupedOptimizerState(each, parameters=parameters) for name, each in found.items() if name in components
    }


class RegroupedOptimizerState(OptimizerState):
    """The state of an optimizer, and its groups if they have changed since the build."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, parameters: Callable[[], Mapping[str, torch.Tensor]]
    ) -> None:
        """`parameters` returns the live parameters by name."""
        super().__init__(optimizer)
        self._parameters = parameters
        self._built, self._built_names = self._held(), self._names()

    def capture(self) -> Any:
        tree = super().capture()
        if [[*map(id, group)] for group in self._held()] == [[*map(id, group)] for group in self._built]:
            return tree
        names = self._names()
        # If a parameter was replaced in the model as well as here, a resume needs nothing further.
        return tree if names == self._built_names else {**tree, _BOUND: names}

    def restore(self, tree: Any) -> None:
        if _BOUND in tree:
            self._bind(tree[_BOUND], tree["param_groups"])
        super().restore({name: value for name, value in tree.items() if name != _BOUND})

    def _bind(self, bound: list[list[str]], stored_groups: list[dict[str, Any]]) -> None:
        live, groups = self._parameters(), self._optimizer.param_groups
        held = [[live[name] for name in names] for names in bound]
        del groups[len(held) :]
        for group, parameters in zip(groups, held, strict=False):
            group["params"] = parameters
        for number in range(len(groups), len(held)):
            settings = {name: value for name, value in stored_groups[number].items() if name != "params"}
            names = settings.pop("param_names", None)
            # torch accepts names of parameters only together with the parameters.
            given = held[number] if names is None else [*zip(names, held[number], strict=True)]
            self._optimizer.add_param_group({"params": given, **settings})

    def _held(self) -> list[list[torch.Tensor]]:
        return [[*group["params"]] for group in self._optimizer.param_groups]

    def _names(self) -> list[list[str]]:
        names = {id(parameter): name for name, parameter in reversed([*self._parameters().items()])}
        # A tensor without a name is refused before the save.
        return [[names.get(id(each), "") for each in group] for group in self._held()]
