"""A plain training script for a recipe, which makes the same step without segue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from segue.recipe import Recipe


class PlainScript:
    """Trains a recipe's own objects."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._batches = recipe, _endless(recipe)

    def step(self) -> None:
        """Make one step on the next batch."""
        recipe, batch = self._recipe, next(self._batches)
        recipe.optimizer.zero_grad(set_to_none=True)
        loss = recipe.loss(recipe.model, batch)
        loss.backward()
        if recipe.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(recipe.model.parameters(), recipe.clip_grad_norm)
        recipe.optimizer.step()
        recipe.scheduler.step()
        if recipe.after_step is not None:
            recipe.after_step(1)
        float(loss.detach())


def _endless(recipe: Recipe) -> Iterator[Any]:
    while True:
        yield from recipe.data
