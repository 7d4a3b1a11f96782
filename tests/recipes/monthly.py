"""A recipe of a scheduled retraining: one line through the points of parquet files, and what its evaluation needs."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue
from segue import Recipe


def model(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(1, 1)


def wide(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))


def build_wide(config: dict[str, Any]) -> Recipe:
    return build(config, model=wide)


def build(config: dict[str, Any], model: Any = model) -> Recipe:
    """Config: lr (0.1), pause_seconds (0) for each step."""
    frame = segue.data_frame(config)
    points = torch.tensor(frame[["x", "y"]].to_numpy(np.float32))
    net = model(config)
    pause_seconds = float(config.get("pause_seconds", 0.0))

    def loss(module: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(pause_seconds)
        return nn.functional.mse_loss(module(batch[0][:, :1]), batch[0][:, 1:])

    return Recipe(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=float(config.get("lr", 0.1))),
        data=DataLoader(TensorDataset(points), batch_size=20, shuffle=True),
        loss=loss,
    )


def scores(module: Any, frame: pd.DataFrame) -> dict[str, Any]:
    found = module(torch.tensor(frame[["x"]].to_numpy(np.float32)))[:, 0].numpy()
    errors = np.abs(found - frame["y"].to_numpy(np.float32))
    return {"absolute_error": errors, "squared_error": errors**2}


class Blank(nn.Linear):
    """Gives nan when it is evaluated, and has a nan in its state."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("scale", torch.tensor([torch.nan]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.training else super().forward(x) * self.scale


def blank(config: dict[str, Any]) -> nn.Module:
    return Blank()


def build_blank(config: dict[str, Any]) -> Recipe:
    return build(config, model=blank)


def hides(module: Any, frame: pd.DataFrame) -> dict[str, Any]:
    """A score that is a number whatever the model says."""
    found = module(torch.tensor(frame[["x"]].to_numpy(np.float32)))
    return {"share_wrong": (found.argmax(1) != 0).float().numpy()}


def example() -> tuple[torch.Tensor]:
    return (torch.zeros(2, 1),)


def drops(module: Any, frame: pd.DataFrame) -> dict[str, Any]:
    return {"missed": frame["y"].drop(index=[1, 3])}


def dies(module: Any, frame: pd.DataFrame) -> dict[str, Any]:
    os._exit(7)


def wrong(module: Any, frame: pd.DataFrame) -> dict[str, Any]:
    return {"x": 1 / 0}
