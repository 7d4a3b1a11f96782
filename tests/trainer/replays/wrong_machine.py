"""A recipe that computes correctly, and a machine that flips one bit of a parameter after a step.

The fault is no part of the recipe: it is a hook of torch, as code outside the run would be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from segue.recipe import Recipe
from segue.testing.recipes import tiny

VARIABLE = "FLIPPED_BIT_OF_TEST"
"""`step,parameter,element,bit`: what this process flips. A process without the variable computes correctly."""


def build(config: dict[str, Any]) -> Recipe:
    """What `tiny` takes, and workers: the number of processes that load the data."""
    recipe = tiny({name: value for name, value in config.items() if name != "workers"})
    if config.get("workers"):
        data = recipe.data
        recipe.data = DataLoader(data.dataset, batch_size=32, shuffle=True, num_workers=config["workers"])
    return recipe


@contextmanager
def flipping(step: int, parameter: int, element: int, bit: int) -> Iterator[None]:
    """A block in which the optimizer's update of this step leaves one wrong bit."""

    def flip(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = optimizer.param_groups[0]["params"][parameter]
        if int(optimizer.state[weights]["step"]) == step:
            values = weights.detach().view(-1).view(torch.int32)
            values[element % len(values)] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)

    hook = register_optimizer_step_post_hook(flip)
    try:
        yield
    finally:
        hook.remove()


if VARIABLE in os.environ:
    _FAULT = flipping(*map(int, os.environ[VARIABLE].split(",")))  # Kept, because a hook that is dropped is removed.
    _FAULT.__enter__()
