"""Recipes that ask more of a training loop than most: metrics for schedulers, closures, sparse gradients."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, ReduceLROnPlateau, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import EarlyStop, Recipe

SAMPLES, BATCH, WORDS = 60, 8, 40  # Eight batches an epoch, the last one short.


def demanding(config: dict[str, Any]) -> Recipe:
    """Config: kind (below), evaluate_every, patience (early stop), clip, hang_at (step), once (a file: hangs once)."""
    recipe = _KINDS[config["kind"]](config)
    recipe.after_step = lambda step: _after_step(recipe, config, step)
    recipe.clip_grad_norm = config.get("clip")
    if "patience" in config:
        recipe.early_stop = EarlyStop(patience=config["patience"], min_delta=1e6)
    return recipe


def _after_step(recipe: Recipe, config: dict[str, Any], step: int) -> None:
    if "plateau" in recipe.extra and step % 3 == 0:
        recipe.extra["plateau"].step(float(step))
    if step == config.get("hang_at") and not Path(config["once"]).exists():
        Path(config["once"]).touch()
        time.sleep(3600)


class OwnPlateau:
    """A scheduler of the user's that needs a metric, and counts how often it was stepped."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.seen = optimizer, 0

    def step(self, val_loss: float) -> None:
        self.seen += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 / (1 + self.seen) + 1e-6 * val_loss

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def _regression(config: dict[str, Any], **fields: Any) -> Recipe:
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[0].sum(1, keepdim=True))

    def evaluate(model: nn.Module) -> float:
        return loss(model, (inputs,)) + torch.rand(()) * 0

    given = {"optimizer": torch.optim.Adam(model.parameters(), lr=0.05), "loss": loss}
    data = DataLoader(TensorDataset(inputs), batch_size=BATCH, shuffle=True)
    if "evaluate_every" in config:
        given |= {"evaluate": evaluate, "evaluate_every": config["evaluate_every"]}
    return Recipe(model=model, data=data, **(given | fields))


def _plateau(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    # Nothing is ever good enough, so every evaluation changes the rate.
    plateau = ReduceLROnPlateau(recipe.optimizer, factor=0.8, patience=0, threshold=1e6, threshold_mode="abs")
    return replace(recipe, scheduler=plateau)


def _plateau_of_ranks(config: dict[str, Any]) -> Recipe:
    # Each rank measures another number, and the rates must not differ for it.
    recipe, rank = _regression(config), int(os.environ.get("RANK", "0"))
    return replace(recipe, scheduler=OwnPlateau(recipe.optimizer), evaluate=lambda model: 100.0 * rank + 1.0)


def _stepped_by_hand(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    plateau = ReduceLROnPlateau(recipe.optimizer, factor=0.9, patience=0, threshold=1e6, threshold_mode="abs")
    return replace(recipe, extra={"plateau": plateau})


def _two_schedulers(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    optimizer = recipe.optimizer
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    phases = [ConstantLR(optimizer, total_iters=3), CosineAnnealingLR(optimizer, T_max=40)]
    return replace(recipe, scheduler={"plan": SequentialLR(optimizer, phases, milestones=[6]), "plateau": plateau})


def _own_plateau(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    return replace(recipe, scheduler=OwnPlateau(recipe.optimizer))


def _closure(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    loss = recipe.loss

    def step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            return value

        return optimizer.step(closure)

    optimizer = torch.optim.LBFGS(
        recipe.model.parameters(), lr=0.5, max_iter=4, history_size=5, line_search_fn=config.get("search")
    )
    return Recipe(model=recipe.model, data=recipe.data, optimizer=optimizer, loss=None, step=step)


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self, *, is_sparse: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6, sparse=is_sparse)
        self.head = nn.Linear(6, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(words).mean(1))


def _words(config: dict[str, Any], **fields: Any) -> Recipe:
    # Words repeat within a batch, so the gradient of a row is a sum of several.
    words = torch.randint(0, WORDS // 2, (SAMPLES, 5), generator=torch.Generator().manual_seed(1))
    model = fields.pop("model", None) or Words()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[0].float().mean(1, keepdim=True)).square().mean()

    data = DataLoader(TensorDataset(words), batch_size=BATCH, shuffle=True)
    given = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "loss": loss}
    return Recipe(model=model, data=data, **(given | fields))


def _sparse_scaled(config: dict[str, Any]) -> Recipe:
    return _words(config, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


def _sparse_adam(config: dict[str, Any]) -> Recipe:
    model = Words()
    optimizers = {
        "words": torch.optim.SparseAdam(list(model.embedding.parameters()), lr=0.01),
        "head": torch.optim.Adam(model.head.parameters(), lr=0.01),
    }
    loss = _words(config).loss

    def step(model: nn.Module, batch: Any, optimizer: dict[str, torch.optim.Optimizer]) -> torch.Tensor:
        for each in optimizer.values():
            each.zero_grad()
        value = loss(model, batch)
        value.backward()
        for each in optimizer.values():
            each.step()
        return value

    return _words(config, model=model, optimizer=optimizers, loss=None, step=step)


def _dense(config: dict[str, Any]) -> Recipe:
    return _words(config, model=Words(is_sparse=False))


def _newest_optimizers(config: dict[str, Any]) -> Recipe:
    recipe = _regression(config)
    matrices = [each for each in recipe.model.parameters() if each.dim() == 2]
    others = [each for each in recipe.model.parameters() if each.dim() != 2]
    optimizers = {"muon": torch.optim.Muon(matrices, lr=0.01), "adafactor": torch.optim.Adafactor(others, lr=0.01)}
    loss = recipe.loss

    def step(model: nn.Module, batch: Any, optimizer: dict[str, torch.optim.Optimizer]) -> torch.Tensor:
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        for each in optimizer.values():
            each.step()
        return value

    return Recipe(model=recipe.model, data=recipe.data, optimizer=optimizers, loss=None, step=step)


_KINDS = {
    "plateau": _plateau,
    "plateau of ranks": _plateau_of_ranks,
    "stepped by hand": _stepped_by_hand,
    "two schedulers": _two_schedulers,
    "own plateau": _own_plateau,
    "closure": _closure,
    "sparse": _words,
    "sparse scaled": _sparse_scaled,
    "sparse adam": _sparse_adam,
    "dense": _dense,
    "muon and adafactor": _newest_optimizers,
}
