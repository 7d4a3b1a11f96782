"""A recipe that writes down when each of its steps begins."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def build(config: dict[str, Any]) -> Recipe:
    """The recipe `tiny` without evaluation. Config: `times`, a file with a line for each step: process and time."""
    recipe, times = tiny(config), Path(config["times"])

    def loss(model: Any, batch: Any) -> Any:
        with times.open("a") as file:
            file.write(f"{os.getpid()} {time.time()}\n")
        return recipe.loss(model, batch)

    return replace(recipe, loss=loss, evaluate=None)
