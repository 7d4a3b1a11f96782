"""What several of the bugs change in a tiny recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import Average

Config = dict[str, Any]


def is_built_again(config: Config) -> bool:
    """Whether this process is a later one: for bugs that need another machine or another start of Python."""
    marker = Path(config["marker"])
    again = marker.exists()
    marker.touch()
    return again


def make_bf16(recipe: Recipe) -> None:
    recipe.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).bfloat16()
    average_with(recipe, Average(recipe.model))
    inner = recipe.loss
    recipe.loss = lambda model, batch: inner(lambda x: model(x.bfloat16()).float(), batch)
    recipe.evaluate = None


def train_with(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    recipe.optimizer = optimizer
    recipe.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)


def average_with(recipe: Recipe, average: Average) -> None:
    recipe.extra, recipe.after_step = {"average": average}, average.update
