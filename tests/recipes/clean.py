"""Recipes that lose nothing, and look to a suspicious reader as if they did."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def build(config: dict[str, Any]) -> Recipe:
    """Config: kind (which), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name != "kind"})
    KINDS[config["kind"]](recipe)
    return recipe


def layers_without_a_shape_before_the_first_batch(recipe: Recipe) -> None:
    _train(recipe, nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1)))


def a_stop_watch(recipe: Recipe) -> None:
    inner, t = recipe.loss, [time.monotonic()]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        t[0] = time.monotonic()
        return inner(model, batch)

    recipe.loss = loss


class Centred(nn.Module):
    """Takes off a running mean that it leaves out of its state, and a table that it makes when it first needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("links", torch.eye(8).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.linspace(1, 2, 8)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer((x - self.mean) * self.table)


def buffers_in_no_state_dict(recipe: Recipe) -> None:
    _train(recipe, Centred())


def _train(recipe: Recipe, model: nn.Module) -> None:
    recipe.model, recipe.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-2)
    recipe.scheduler, recipe.extra, recipe.after_step, recipe.evaluate = None, {}, None, None


KINDS: dict[str, Callable[[Recipe], None]] = {
    kind.__name__: kind
    for kind in (layers_without_a_shape_before_the_first_batch, a_stop_watch, buffers_in_no_state_dict)
}
