"""Recipes to be measured on a device."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe

_SLOTS = 3
"""Number of values for each parameter: the parameter and its two moments in AdamW."""
TIMES: list[float] = []
"""Time at which each step of `steady` was launched, in the process that trains."""


def heavy(config: dict[str, Any]) -> Recipe:
    """A recipe with a state of about `size_bytes` in 300 tensors, and a cheap step. Config: size_bytes."""
    width = max(int((config["size_bytes"] / (4 * _SLOTS * 100)) ** 0.5), 1)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(100)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = DataLoader(TensorDataset(torch.randn(64, width)), batch_size=8, shuffle=True)
    return Recipe(
        model=model, optimizer=optimizer, data=data, loss=lambda model, batch: model(batch[0]).square().mean()
    )


def steady(config: dict[str, Any]) -> Recipe:
    """A recipe whose step time is the time of its kernels. Config: width, batch_size."""
    width, batch = int(config["width"]), int(config["batch_size"])
    model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(width, width), nn.GELU())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = DataLoader(TensorDataset(torch.randn(batch * 100, width)), batch_size=batch, shuffle=True)

    def after_step(step: int) -> None:
        TIMES.append(time.perf_counter())

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=data,
        loss=lambda model, batch: model(batch[0]).square().mean(),
        clip_grad_norm=1.0,
        after_step=after_step,
    )
