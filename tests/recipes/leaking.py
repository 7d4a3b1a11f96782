"""A recipe that shows its environment wherever it can: in its output, its logs and its exception."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def build(config: dict[str, Any]) -> Recipe:
    sys.stdout.write(f"{dict(os.environ)}\n")
    sys.stderr.write(f"{json.dumps(dict(os.environ))}\n")
    sys.stdout.flush()
    for value in os.environ.values():
        logging.getLogger("leaking").warning("a value: %s", value)
    recipe = tiny({})
    steps = itertools.count(1)
    raise_at = config.get("raise_at_step", 25)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(steps) >= raise_at:
            everything = dict(os.environ)
            raise RuntimeError(f"cannot connect: {everything} as {os.environ['LEAKED_URL']}")
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return Recipe(model=recipe.model, optimizer=recipe.optimizer, data=recipe.data, loss=loss)
