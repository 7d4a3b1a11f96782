"""Scripts that were rewritten by hand according to their fix, because the fix is no line of code. Nothing else was
changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset, WeightedRandomSampler

import segue
from benchmarks.continuity.blind.cases import Build
from benchmarks.continuity.scripts.base import SAMPLES, Batch, Config, loader, mse, net, recipe, samples
from benchmarks.continuity.scripts.training import ByAddress
from segue.recipe import Recipe

_RECIPES: dict[str, str] = {}


def rewritten(name: str) -> Callable[[Build], Build]:
    """Declare a recipe as the case of this name with its fix applied."""

    def declared(build: Build) -> Build:
        _RECIPES[name] = f"{build.__module__}:{build.__name__}"
        return build

    return declared


def rewritten_recipe(name: str) -> str | None:
    """The recipe of the case with this name after its fix; None: there is no such recipe."""
    return _RECIPES.get(name)


class _Annealed:
    def __init__(self) -> None:
        self.weight = 1.0

    def __next__(self) -> float:
        weight, self.weight = self.weight, self.weight * 0.99
        return weight


@rewritten("generator function")
def generator_object(config: Config) -> Recipe:
    weights = _Annealed()
    return recipe(loss=lambda model, batch: mse(model, batch) * next(weights), extra={"weights": weights})


@rewritten("weak dictionary by module")
def weak_dictionary(config: Config) -> Recipe:
    ages: dict[str, int] = {}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        ages["model"] = ages.get("model", 0) + 1
        return mse(model, batch) * (1 + 0.01 * ages["model"])

    return recipe(loss=loss, extra={"ages": ages})


def _counted(config: Config) -> Recipe:
    state = {"done": 0}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        state["done"] += 1
        return mse(model, batch) * (1 + (state["done"] - 1) / 100)

    return recipe(loss=loss, extra={"state": state})


@rewritten("counter in a temporary file")
def temporary_file(config: Config) -> Recipe:
    return _counted(config)


@rewritten("counter in the environment")
def environment_variable(config: Config) -> Recipe:
    return _counted(config)


class _FromLoss(Sampler[int]):
    def __init__(self) -> None:
        self.priority = np.ones(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(np.argsort(self.priority, kind="stable").tolist())


@rewritten("priorities of a sampler")
def prioritized_sampler(config: Config) -> Recipe:
    sampler = _FromLoss()

    def on_epoch(epoch: int) -> None:
        sampler.priority[epoch % SAMPLES] -= epoch

    return recipe(data=loader(sampler=sampler, shuffle=False), on_epoch=on_epoch, extra={"sampler": sampler})


@rewritten("weights of a WeightedRandomSampler")
def weighted_sampler(config: Config) -> Recipe:
    sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)

    def on_epoch(epoch: int) -> None:
        sampler.weights[: epoch % SAMPLES] *= 0.9

    extra: dict[str, Any] = {"weights": segue.Variables(sampler, "weights")}
    return recipe(data=loader(sampler=sampler, shuffle=False), on_epoch=on_epoch, extra=extra)


class _Growing(BatchSampler):
    def __init__(self) -> None:
        super().__init__(range(SAMPLES), 16, drop_last=True)

    def __iter__(self) -> Iterator[list[int]]:
        start = int(torch.randint(SAMPLES, ()))
        for n in range(len(self)):
            yield [(16 * n + k + start) % SAMPLES for k in range(16)]


@rewritten("passes that a batch sampler counts in its module")
def batch_sampler(config: Config) -> Recipe:
    return recipe(data=DataLoader(TensorDataset(*samples()), batch_sampler=_Growing()))


class _ByParameter(ByAddress):
    def slot(self, parameter: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        return found


@rewritten("momenta by the id of a parameter")
def momenta_in_state(config: Config) -> Recipe:
    model = net()
    return recipe(model, optimizer=_ByParameter(model.parameters()))
