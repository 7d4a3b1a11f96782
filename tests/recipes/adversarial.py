"""A recipe with a step of its own: two optimizers that take turns, each with a scheduler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.recipe import Recipe

SAMPLES, BATCH = 64, 8


class Pair(nn.Module):
    """A generator and a critic, as one module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))


def adversarial(config: dict[str, Any]) -> Recipe:
    """Config: hang_at (a step), once (a file: it hangs only until that is there), forget (an optimizer)."""
    real = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    model = Pair()
    optimizers = {
        "generator": torch.optim.Adam(model.generator.parameters(), lr=0.01),
        "critic": torch.optim.RMSprop(model.critic.parameters(), lr=0.02, momentum=0.9),
    }
    kept = {name: each for name, each in optimizers.items() if name != config.get("forget")}
    steps = {"made": 0}

    def step(model: nn.Module, batch: Any, _: Any) -> dict[str, torch.Tensor]:
        (x,) = batch
        generator, critic = optimizers["generator"], optimizers["critic"]
        made = model.generator(torch.randn(len(x), 2))
        critic.zero_grad()
        judged = model.critic(made.detach()).mean() - model.critic(x).mean()
        judged.backward()
        torch.nn.utils.clip_grad_norm_(model.critic.parameters(), 1.0)
        critic.step()
        generator.zero_grad()
        fooled = -model.critic(made).mean()
        fooled.backward()
        generator.step()
        steps["made"] += 1
        if steps["made"] == config.get("hang_at") and not Path(config["once"]).exists():
            Path(config["once"]).touch()
            time.sleep(3600)
        return {"critic": judged, "generator": fooled}

    return Recipe(
        model=model,
        optimizer=kept,
        data=DataLoader(TensorDataset(real), batch_size=BATCH, shuffle=True),
        step=step,
        extra={"steps": steps},
        scheduler={name: torch.optim.lr_scheduler.StepLR(each, 7, gamma=0.5) for name, each in kept.items()},
    )
