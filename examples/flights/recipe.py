"""The recipe: embeddings for categorical columns, dropout and batch norm, AdamW with a cosine schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from examples.flights.data import Flights, read_flights
from segue import Recipe

HELD_OUT = 8192


class FlightsDataset(Dataset[Any]):
    """Fetches a whole batch by one index into each tensor; one flight at a time would take longer than the step."""

    def __init__(self, flights: Flights, count: int) -> None:
        self._flights, self._count = flights, count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        index = torch.tensor(ids)
        return self._flights.codes[index], self._flights.numbers[index], self._flights.delays[index]


class DelayNet(nn.Module):
    """Arrival delay from carrier, airports, date, schedule and departure delay."""

    def __init__(self, sizes: tuple[int, ...], numbers: int, width: int) -> None:
        super().__init__()
        embeddings = [nn.Embedding(size, min(16, (size + 1) // 2)) for size in sizes]
        self.embeddings = nn.ModuleList(embeddings)
        inputs = numbers + sum(embedding.embedding_dim for embedding in embeddings)
        self.body = nn.Sequential(
            nn.Linear(inputs, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, codes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(codes[:, n]) for n, embedding in enumerate(self.embeddings)]
        delays: torch.Tensor = self.body(torch.cat([*embedded, numbers], dim=1))
        return delays.squeeze(1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Huber loss on standardised delays: a flight that is twelve hours late must not dominate the gradient."""
    codes, numbers, delays = batch
    return nn.functional.huber_loss(model(codes, numbers), delays)


def build(config: dict[str, Any]) -> Recipe:
    """Config: width (128), batch_size (1024), lr (3e-3), schedule_steps (4000), limit (rows to read, all)."""
    flights = read_flights(config.get("limit"))
    count = len(flights.delays) - HELD_OUT
    model = DelayNet(flights.sizes, flights.numbers.shape[1], int(config.get("width", 128)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(config.get("lr", 3e-3)))

    def evaluate(model: nn.Module) -> float:
        held_out = (flights.codes[count:], flights.numbers[count:], flights.delays[count:])
        return float(loss(model, held_out))

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(
            FlightsDataset(flights, count),
            batch_size=int(config.get("batch_size", 1024)),
            shuffle=True,
            drop_last=True,
            collate_fn=_as_fetched,
        ),
        loss=loss,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=int(config.get("schedule_steps", 4000))),
        evaluate=evaluate,
    )


def _as_fetched(batch: Any) -> Any:
    return batch
