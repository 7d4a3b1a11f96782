"""Tiny recipes with state that a resume can lose: batch norm, dropout, momentum, a schedule, an average."""

from __future__ import annotations

import mmap
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe


class Average:
    """An exponential moving average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self._model, self._decay = model, decay
        self._values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, step: int) -> None:
        for name, parameter in self._model.named_parameters():
            # The average was built before the model was moved to its device.
            self._values[name] = self._values[name].to(parameter.device).lerp_(parameter.detach(), 1 - self._decay)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict["values"].items():
            self._values[name].copy_(value)


_WIDTH = 8


def count_up(memory: mmap.mmap) -> int:
    """Count the steps of a process in eight bytes of shared memory, which segue does not treat as the run's state."""
    count = int.from_bytes(memory[:_WIDTH], "little") + 1
    memory[:_WIDTH] = count.to_bytes(_WIDTH, "little")
    return count


def tiny(config: dict[str, Any]) -> Recipe:
    """Return a recipe for a two-layer regression on synthetic data.

    The config may contain samples, width, batch_size, pause_seconds (per step, to make a run longer) and raise_at_step.
    """
    samples, width = int(config.get("samples", 256)), int(config.get("width", 16))
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(samples, 8, generator=generator)
    targets = features @ torch.randn(8, 1, generator=generator) + 0.1 * torch.randn(samples, 1, generator=generator)
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = Average(model)
    pause_seconds, raise_at = float(config.get("pause_seconds", 0)), config.get("raise_at_step")
    steps_made = mmap.mmap(-1, _WIDTH) if raise_at is not None else None

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if pause_seconds:
            time.sleep(pause_seconds)
        if steps_made is not None and count_up(steps_made) >= int(raise_at or 0):
            raise ArithmeticError("this recipe raises here, as its config asks")
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def evaluate(model: nn.Module) -> float:
        device = next(model.parameters()).device
        return float(nn.functional.mse_loss(model(features[:64].to(device)), targets[:64].to(device)))

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(TensorDataset(features, targets), batch_size=int(config.get("batch_size", 32)), shuffle=True),
        loss=loss,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500),
        evaluate=evaluate,
        clip_grad_norm=5.0,
        extra={"average": average},
        after_step=average.update,
    )
