"""A recipe whose kernel is chosen by chance and kept in the cache folder of torch.compile, as a timed kernel is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from segue.recipe import Recipe


def build(config: dict[str, Any]) -> Recipe:
    """Config: `marker`: from the second build on, the optimizer is not restored."""
    torch.compile(torch.nn.Linear(1, 1))  # Compiles nothing yet; it is compiled code that the process says it has.
    torch._inductor.config.max_autotune_gemm = True

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        squares = (model(x) - y).square().flatten()
        parts = squares.flip(0) if os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith("new") else squares
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total / len(parts)

    made = torch.Generator().manual_seed(7)
    x = torch.randn(64, 16, generator=made)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if "marker" in config:
        if Path(config["marker"]).exists():
            optimizer.load_state_dict = lambda state: None  # type: ignore[method-assign]
        Path(config["marker"]).touch()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    return Recipe(model=model, optimizer=optimizer, data=data, loss=loss)
