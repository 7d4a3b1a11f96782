"""Recipes that do not compute the same twice, by kernels or by what they draw; and one that chooses its threads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from segue.recipe import Recipe
from segue.testing.recipes import tiny

_LOOKUPS = 40_000
"""Per sample: enough that torch divides the additions of a batch among its threads."""


def build(config: dict[str, Any]) -> Recipe:
    """Config: kind, and for `perturbed` the relative size of the noise, eps."""
    recipe: Recipe = KINDS[config["kind"]](config)
    return recipe


def _of_tiny(config: dict[str, Any]) -> Recipe:
    return tiny({name: value for name, value in config.items() if name not in ("kind", "eps")})


class _Lookups(nn.Module):
    """A table that many samples read at the same places: its gradient is summed by several threads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.randn(50)), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x.abs().sum(1, keepdim=True) * torch.arange(1, _LOOKUPS + 1)).long() % len(self.table)
        read = self.table[places.reshape(-1)].view(len(x), -1)
        return self.scale(x) + (read * read.detach().cos()).mean(1, keepdim=True)


def index_put(config: dict[str, Any]) -> Recipe:
    """A kernel that is not deterministic with two threads, and has a deterministic form."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(7)
    features, model = torch.randn(64, 8, generator=generator), _Lookups()
    data = DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Recipe(
        model=model, optimizer=optimizer, data=data, loss=lambda model, b: nn.functional.mse_loss(model(b[0]), b[1])
    )


def perturbed(config: dict[str, Any]) -> Recipe:
    """Gradients with a relative error of size eps that is another in each process and step."""
    recipe, eps = _of_tiny(config), float(config["eps"])
    for parameter in recipe.model.parameters():
        parameter.register_hook(lambda grad: grad * (1 + eps * _noise(grad.shape)))
    return recipe


def _noise(shape: torch.Size) -> torch.Tensor:
    """As kernels make it, which keep no state either."""
    made = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
    return torch.randn(shape, generator=made)


def unseeded_dropout(config: dict[str, Any]) -> Recipe:
    """Dropout that draws from a generator of its own, which nothing seeds."""
    recipe, own = _of_tiny(config), torch.Generator()
    own.seed()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        keep = torch.rand(x.shape, generator=own) > 0.1
        return nn.functional.mse_loss(model(x * keep), y)

    recipe.loss = loss
    return recipe


class _Augmented(Dataset[Any]):
    def __init__(self, inner: Dataset[Any], change: Any) -> None:
        self._inner, self._change = inner, change

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        x, y = self._inner[index]
        return self._change(x), y


def unseeded_batch(config: dict[str, Any]) -> Recipe:
    """An augmentation that draws from a generator of its own, which nothing seeds."""
    recipe, own = _of_tiny(config), torch.Generator()
    own.seed()
    data = _Augmented(recipe.data.dataset, lambda x: x + 0.1 * torch.randn(x.shape, generator=own))
    recipe.data = DataLoader(data, batch_size=32, shuffle=True)
    return recipe


def wall_time(config: dict[str, Any]) -> Recipe:
    """The time of day in each sample; no loss depends on it."""
    recipe = _of_tiny(config)
    data = _Augmented(recipe.data.dataset, lambda x: (x, time.time()))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        (x, _), y = batch
        return nn.functional.mse_loss(model(x), y)

    recipe.data, recipe.loss = DataLoader(data, batch_size=32, shuffle=True), loss
    return recipe


def own_threads(config: dict[str, Any]) -> Recipe:
    """The recipe sets the number of threads: to 2 the first time, and to what `threads_file` says otherwise."""
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "2")))
    return _of_tiny(config)


class _Loss:
    """Holds a value that no loss depends on."""

    def __init__(self, value: float) -> None:
        self.margin = value

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def drawn_setting(config: dict[str, Any]) -> Recipe:
    """A number that each build measures anew once the file `moved` is there."""
    recipe = tiny({})
    recipe.loss = _Loss(1.0 if not Path(config["moved"]).exists() else 2.0 + os.urandom(1)[0])
    return recipe


def kept_setting(config: dict[str, Any]) -> Recipe:
    """A setting that is another one once the file `moved` is there."""
    recipe = tiny({})
    recipe.loss = _Loss(1.0 if not Path(config["moved"]).exists() else 2.0)
    return recipe


def without_kernel(config: dict[str, Any]) -> Recipe:
    """An operation that has no deterministic kernel."""
    recipe = _of_tiny(config)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        torch.zeros(5).put_(torch.tensor([0]), torch.ones(1))
        return nn.functional.mse_loss(model(x), y)

    recipe.loss = loss
    return recipe


KINDS = {
    each.__name__: each
    for each in (
        index_put,
        perturbed,
        unseeded_dropout,
        unseeded_batch,
        wall_time,
        own_threads,
        drawn_setting,
        kept_setting,
        without_kernel,
    )
}
