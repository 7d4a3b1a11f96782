"""Recipes whose state lies outside their components, or that spoil what a step leaves behind after a resume."""

from __future__ import annotations

import collections
import os
import random
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from segue.testing.recipes import Average, tiny

Config = dict[str, Any]


def replay_buffer(recipe: Recipe, config: Config) -> None:
    """Earlier losses are sampled: how much is drawn depends on how many there are."""
    buffer: collections.deque[float] = collections.deque(maxlen=50)
    plain = recipe.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = plain(model, batch)
        buffer.append(float(value.detach()))
        drawn = random.sample(list(buffer), min(len(buffer), 4))
        return value * (1 + 0.01 * sum(drawn))

    recipe.loss = loss


def generator_of_the_loss(recipe: Recipe, config: Config) -> None:
    """A generator seeded in build, which no checkpoint holds."""
    noise = torch.Generator().manual_seed(3)
    plain = recipe.loss
    recipe.loss = lambda model, batch: plain(model, batch) * (1 + 0.1 * torch.rand(1, generator=noise).squeeze())


def average_of_the_metric(recipe: Recipe, config: Config) -> None:
    """An average that only the metric reads, and nobody registers."""
    held = nn.Linear(1, 1)
    model, update = recipe.model, recipe.after_step

    def after_step(step: int) -> None:
        assert update is not None
        update(step)
        with torch.no_grad():
            held.weight.lerp_(next(model.parameters()).detach()[:1, :1], 0.1)

    recipe.after_step = after_step
    recipe.evaluate = lambda _: float(held.weight.detach().sum())


def after_step_that_does_nothing(recipe: Recipe, config: Config) -> None:
    """From the second build on, the average is not updated any more."""
    marker = Path(config["marker"])
    average = recipe.extra["average"]
    assert isinstance(average, Average)
    is_frozen = marker.exists()
    marker.touch()

    def after_step(step: int) -> None:
        if not is_frozen:
            average.update(step)

    recipe.after_step = after_step


def momentum_of_the_norm_lost(recipe: Recipe, config: Config) -> None:
    """From the second build on, a hook sets the momentum of the batch norm to another value before each step."""
    marker = Path(config["marker"])
    norm = next(module for module in recipe.model.modules() if isinstance(module, nn.BatchNorm1d))
    momentum = 0.01 if marker.exists() else 0.1
    marker.touch()

    def set_momentum(module: nn.Module, _: Any) -> None:
        norm.momentum = momentum

    recipe.model.register_forward_pre_hook(set_momentum)


def buffers_left_out(recipe: Recipe, config: Config) -> None:
    """A model whose own state_dict has no batch statistics."""

    class Bare(nn.Sequential):
        def state_dict(self, *args: Any, **names: Any) -> Any:
            state = super().state_dict(*args, **names)
            for name in [name for name in state if "running" in name or "tracked" in name]:
                del state[name]
            return state

        def load_state_dict(self, state_dict: Any, *args: Any, **names: Any) -> Any:
            return super().load_state_dict(state_dict, strict=False)

    recipe.model.__class__ = Bare


def values_of_the_process(recipe: Recipe, config: Config) -> None:
    """Run ids, temporary names, ports, counts and orders of sets, wherever a process keeps them."""
    marker = Path(config["marker"])
    restarts = int(marker.read_text()) if marker.exists() else 0
    marker.write_text(str(restarts + 1))
    plain = recipe.loss

    class Loss:
        def __init__(self) -> None:
            self.restarts, self.is_resumed = restarts, restarts > 0
            self.run_id, self.port = uuid.uuid4().hex, random.SystemRandom().randrange(20000, 60000)
            self.folder, self.pid = tempfile.mkdtemp(), os.getpid()
            self.names = list({"a", "b", "c", "d", "e", "f"})

        def __call__(self, model: nn.Module, batch: Any, attempt: int = restarts) -> torch.Tensor:
            return plain(model, batch)

    recipe.loss = Loss()


def unnamed_values_of_the_process(recipe: Recipe, config: Config) -> None:
    """Values that only a second process shows to be its own."""
    plain, chance = recipe.loss, random.SystemRandom()

    class Loss:
        def __init__(self) -> None:
            self.color, self.delay = hash("train") % 256, chance.random()

        def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return plain(model, batch)

    recipe.loss = Loss()


def registered_dict_and_generator(recipe: Recipe, config: Config) -> None:
    """The same as others here, handed over."""
    state, noise = {"calls": 0, "mean": torch.zeros(())}, torch.Generator().manual_seed(3)
    plain = recipe.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = plain(model, batch)
        state["calls"] += 1
        state["mean"] = 0.9 * state["mean"] + 0.1 * value.detach()
        return value * (1 + 0.01 * state["calls"] + 0.1 * state["mean"] + torch.rand(1, generator=noise).squeeze())

    recipe.loss, recipe.extra = loss, {**recipe.extra, "state": state, "noise": noise}


KINDS: dict[str, Callable[[Recipe, Config], None]] = {
    name: made
    for name, made in list(vars().items())
    if callable(made) and getattr(made, "__module__", "") == __name__ and name.islower()
}


def build(config: Config) -> Recipe:
    """Config: kind (which), marker (a file of the test's), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name not in {"kind", "marker"}})
    KINDS[config["kind"]](recipe, config)
    return recipe
