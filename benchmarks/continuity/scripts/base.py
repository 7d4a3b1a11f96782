"""The common parts of the scripts: a small network, its data, and a recipe with both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.continuity.blind.cases import Axis, Build, case
from segue.recipe import Recipe

SAMPLES, FEATURES, WIDTH, BATCH = 224, 8, 16, 16
Config = dict[str, Any]
Batch = list[torch.Tensor]


def unregistered(name: str, *names: str, **fields: Any) -> Callable[[Build], Build]:
    """A case of untracked state."""
    return case(name, Axis.UNREGISTERED, *names, **fields)


def sound(name: str, **fields: Any) -> Callable[[Build], Build]:
    """A case that looks suspicious, but loses nothing that affects training."""
    return case(name, Axis.SOUND, is_sound=True, **fields)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (224, 8) and targets (224, 1)."""
    made = torch.Generator().manual_seed(7)
    features, weights, noise = (
        torch.randn(shape, generator=made, dtype=torch.float32)
        for shape in ((SAMPLES, FEATURES), (FEATURES, 1), (SAMPLES, 1))
    )
    return features, features @ weights + 0.1 * noise


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 1)
    )


def mse(model: nn.Module, batch: Batch) -> torch.Tensor:
    x, y = batch
    return functional.mse_loss(model(x), y)


def loader(dataset: Dataset[Any] | None = None, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": BATCH, "shuffle": True} | options
    return DataLoader(dataset if dataset is not None else TensorDataset(*samples()), **options)


def recipe(
    model: nn.Module | None = None,
    loss: Callable[[nn.Module, Any], Any] | None = mse,
    *,
    optimizer: Any = None,
    data: DataLoader[Any] | None = None,
    **fields: Any,
) -> Recipe:
    """A recipe that differs from a plain recipe in the given fields."""
    model = model if model is not None else net()
    optimizer = optimizer if optimizer is not None else torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Recipe(
        model=model,
        optimizer=optimizer,
        data=data if data is not None else loader(),
        loss=loss,  # type: ignore[arg-type]
        **fields,
    )


def scratch(name: str) -> Path:
    """A file in the temporary folder."""
    return Path(tempfile.gettempdir()) / name
