"""A recipe that uses the fields for longer training: accumulation, parts of a loss, evaluations, epochs, early stop."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from segue.recipe import EarlyStop, Recipe

SAMPLES, BATCH = 60, 8  # Eight batches an epoch, the last one short.


def rich(config: dict[str, Any]) -> Recipe:
    """Config: accumulate, epochs, evaluate_every, patience, scheduler_every, hang_at (step), weighted, compile, ema."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    if "compile" in config:
        model.compile(backend=config["compile"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = Seen()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    weights = torch.linspace(0.1, 1, SAMPLES)
    order = {"sampler": WeightedRandomSampler(weights, SAMPLES)} if config.get("weighted") else {"shuffle": True}

    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        (x,) = batch
        predicted = model(x)
        error = nn.functional.mse_loss(predicted, x.sum(1, keepdim=True))
        return {"error": error, "size": 0.01 * predicted.square().mean(), "largest": predicted.detach().max()}

    def after_step(step: int, metrics: dict[str, float]) -> None:
        seen.values.append(metrics["error"])
        if config.get("ema"):
            average.update_parameters(model)
        while step == config.get("hang_at"):
            time.sleep(1)

    patience = config.get("patience")
    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(TensorDataset(inputs), batch_size=BATCH, **order),
        loss=loss,
        accumulate=config.get("accumulate", 1),
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        scheduler_every=config.get("scheduler_every", "epoch"),
        evaluate=lambda model: model(inputs).square().mean() + (torch.rand(()) * 0),
        evaluate_every=config.get("evaluate_every"),
        early_stop=EarlyStop(patience=patience, min_delta=1e6) if patience else None,
        epochs=config.get("epochs"),
        extra={"seen": seen} | ({"average": average} if config.get("ema") else {}),
        after_step=after_step,
        on_epoch=seen.epochs.append,
    )


class Seen:
    """What the recipe's functions were given."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.epochs: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values[:], self.epochs[:] = state_dict["values"], state_dict["epochs"]
