"""The functions that retrain.toml names: the recipe, its model alone, and what it is judged by."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import segue
from segue import Recipe

CATEGORIES = {"carrier": 32, "origin": 8, "dest": 256}
"""Columns of text, and how many buckets their values are hashed into: a new airport needs no new model."""
NUMBERS = ("hour", "weekday", "distance", "dep_delay")


class DelayNet(nn.Module):
    """Arrival delay in minutes. The scale of its inputs is part of its state, so its weights are all that it needs."""

    scale: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 8) for size in CATEGORIES.values())
        inputs = 8 * len(CATEGORIES) + len(NUMBERS)
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)
        self.register_buffer("scale", torch.stack([torch.zeros(len(NUMBERS)), torch.ones(len(NUMBERS))]))

    def forward(self, codes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(codes[:, n]) for n, embedding in enumerate(self.embeddings)]
        scaled = (numbers - self.scale[0]) / self.scale[1]
        delays: torch.Tensor = self.head(self.body(torch.cat([*embedded, scaled], dim=1)))
        return delays.squeeze(1)


class Rows(Dataset[Any]):
    """Fetches a whole batch by one index into each tensor."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitems__(self, ids: list[int]) -> tuple[torch.Tensor, ...]:
        index = torch.tensor(ids)
        return tuple(tensor[index] for tensor in self._tensors)


def model(config: dict[str, Any]) -> DelayNet:
    """The model without weights. Config: width (64)."""
    return DelayNet(int(config.get("width", 64)))


def build(config: dict[str, Any]) -> Recipe:
    """Config: data (files of the window), lr (2e-3), width."""
    frame = segue.data_frame(config)
    codes, numbers = inputs(frame)
    delays = torch.from_numpy(frame["arr_delay"].to_numpy(np.float32))
    net = model(config)
    net.scale.copy_(torch.stack([numbers.mean(dim=0), numbers.std(dim=0)]))
    return Recipe(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=float(config.get("lr", 2e-3))),
        data=DataLoader(
            Rows(codes, numbers, delays), batch_size=512, shuffle=True, drop_last=True, collate_fn=_as_fetched
        ),
        loss=lambda net, batch: nn.functional.huber_loss(net(batch[0], batch[1]), batch[2], delta=10.0),
    )


def inputs(frame: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model takes of rows: codes int64 (rows, 3), numbers float32 (rows, 4)."""
    codes = np.stack([_buckets(frame[name], size) for name, size in CATEGORIES.items()], axis=1)
    date = pd.to_datetime(frame[["year", "month", "day"]])
    hour, weekday = frame["sched_dep_time"] / 100, date.dt.day_of_week
    numbers = np.stack([hour, weekday, frame["distance"], frame["dep_delay"]], axis=1)
    return torch.from_numpy(codes), torch.from_numpy(numbers.astype(np.float32))


def scores(model: Callable[..., torch.Tensor], frame: pd.DataFrame) -> dict[str, Any]:
    """Minutes by which each flight's delay is missed, and whether it is missed by more than half an hour."""
    found = model(*inputs(frame)).numpy()
    missed = np.abs(found - frame["arr_delay"].to_numpy(np.float32))
    return {"minutes_missed": missed, "missed_by_half_an_hour": missed > 30}


def example() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of two flights, with which the model is published as a program."""
    return torch.zeros(2, len(CATEGORIES), dtype=torch.int64), torch.zeros(2, len(NUMBERS))


def _buckets(column: pd.Series, size: int) -> np.ndarray:
    values = {value: zlib.crc32(str(value).encode()) % size for value in column.unique()}
    codes: np.ndarray = column.map(values).to_numpy(np.int64)
    return codes


def _as_fetched(batch: Any) -> Any:
    return batch
