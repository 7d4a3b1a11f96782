"""A recipe that a test holds back, so that what it waits for happens while a run still has work left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def build(config: dict[str, Any]) -> Recipe:
    """Config: brake (a file), brake_seconds (while it is there, of every step; 0.05), brake_rank (only this rank
    brakes), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if not name.startswith("brake")})
    if config.get("brake_rank", os.environ.get("RANK")) != os.environ.get("RANK"):
        return recipe
    brake, inner = Path(config["brake"]), recipe.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if brake.exists():
            time.sleep(config.get("brake_seconds", 0.05))
        return inner(model, batch)

    recipe.loss = loss
    return recipe
