"""Loss scales that were counted again, and data that was drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from segue.recipe import Recipe
from tests.recipes.public_bugs.changes import Config, is_built_again


def scaler_made_after_the_load(recipe: Recipe, config: Config) -> None:
    """The trainer's `fit` made the scaler, after the checkpoint had been loaded into the one before."""

    class MadeByFit(torch.amp.GradScaler):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            super().load_state_dict(_scaler().state_dict())

    recipe.scaler = _scaler(MadeByFit)


def growth_counter_not_saved(recipe: Recipe, config: Config) -> None:
    """The scale is saved; how many steps ago it last grew is not."""

    class NoCounter(torch.amp.GradScaler):
        def state_dict(self) -> dict[str, Any]:
            return {name: value for name, value in super().state_dict().items() if name != "_growth_tracker"}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict({**state_dict, "_growth_tracker": 0})

    recipe.scaler = _scaler(NoCounter)


def _scaler(kind: type[torch.amp.GradScaler] = torch.amp.GradScaler) -> torch.amp.GradScaler:
    return kind("cpu", init_scale=16.0, growth_interval=7)


def seeded_at_the_first_batch(recipe: Recipe, config: Config) -> None:
    """The data set seeds the global streams when it is first read: after the checkpoint has put them back."""
    inner = recipe.data.dataset

    class Seeds(Dataset[Any]):
        ready = False

        def __len__(self) -> int:
            return len(inner)

        def __getitem__(self, index: int) -> Any:
            if not self.ready:
                torch.manual_seed(1234)
                self.ready = True
            return inner[index]

    recipe.data = DataLoader(Seeds(), batch_size=32, shuffle=True)


def generator_of_the_data_set(recipe: Recipe, config: Config) -> None:
    """Noise from a generator of the data set's own, which starts again with every process."""
    inner = recipe.data.dataset

    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self._generator = np.random.default_rng(0)

        def __len__(self) -> int:
            return len(inner)

        def __getitem__(self, index: int) -> Any:
            x, y = inner[index]
            return x + torch.from_numpy(self._generator.normal(size=8).astype(np.float32)), y

    recipe.data = DataLoader(Noisy(), batch_size=32, shuffle=True)


def batch_size_found_anew(recipe: Recipe, config: Config) -> None:
    """The batch size is what fits into memory; the machine of the second attempt has less of it."""
    fits = 16 if is_built_again(config) else 32
    recipe.data = DataLoader(recipe.data.dataset, batch_size=fits, shuffle=True)
