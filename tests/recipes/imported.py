"""Recipes for the tests that begin a run with somebody's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def pretrained(config: dict[str, Any]) -> Recipe:
    """The tiny recipe that loads its weights itself: a run that begins as an import of them should."""
    recipe = tiny({})
    recipe.model.load_state_dict(torch.load(config["weights"], weights_only=True))
    return recipe


class Tied(nn.Module):
    """Two names of one weight, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.model.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(x))


def tied(config: dict[str, Any]) -> Recipe:
    """A model with tied weights, and names that begin as a wrapper's do."""
    return with_model(Tied())


def half(config: dict[str, Any]) -> Recipe:
    """A model in half precision."""
    return with_model(nn.Linear(4, 4).half())


def raises(config: dict[str, Any]) -> Recipe:
    raise LookupError("no such table")


def no_recipe(config: dict[str, Any]) -> object:
    return {"model": nn.Linear(4, 4)}


def with_model(model: nn.Module) -> Recipe:
    data = TensorDataset(torch.zeros(8, 4))
    return Recipe(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=DataLoader(data, batch_size=3, shuffle=True),
        loss=lambda model, batch: model(batch[0]).square().mean(),
    )


class Secret:
    """Has state that is not data."""

    def state_dict(self) -> dict[str, Any]:
        return {"it": object()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


def secretive(config: dict[str, Any]) -> Recipe:
    """The tiny recipe with something that no checkpoint can hold."""
    recipe = tiny({})
    recipe.extra = {"secret": Secret()}
    return recipe
