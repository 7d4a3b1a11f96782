"""A recipe that trains a small adapter on a large frozen layer, as fine-tuning does."""

from __future__ import annotations

import mmap
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe
from segue.testing.recipes import count_up


def build(config: dict[str, Any]) -> Recipe:
    made = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(128, 64, generator=made), torch.randn(128, 1, generator=made))
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1))
    model[0].requires_grad_(False)
    steps = mmap.mmap(-1, 8)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(config.get("pause_seconds", 0))
        if count_up(steps) >= config.get("raise_at_step", 1 << 62):
            raise ArithmeticError("told to")
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return Recipe(
        model=model,
        optimizer=torch.optim.AdamW(model[2].parameters(), lr=1e-2),
        data=DataLoader(data, batch_size=16, shuffle=True),
        loss=loss,
    )
