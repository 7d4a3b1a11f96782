"""A recipe whose samples are the rows of the run's data files."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from segue import Recipe


def build(config: dict[str, Any]) -> Recipe:
    """Config: data (paths of parquet files with columns x and y)."""
    frame = pd.concat([pd.read_parquet(path) for path in config["data"]])
    samples = TensorDataset(*(torch.tensor(frame[[name]].to_numpy("float32")) for name in ("x", "y")))
    model = torch.nn.Linear(1, 1)
    return Recipe(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        data=DataLoader(samples, batch_size=8, shuffle=True, drop_last=True),
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
    )
