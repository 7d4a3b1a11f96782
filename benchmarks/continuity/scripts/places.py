"""State in unusual places: contexts, threads, weak references, files, the environment, another module, a singleton."""

from __future__ import annotations

import contextvars
import json
import os
import threading
import weakref
from typing import Any, ClassVar

import torch
from torch import nn

from benchmarks.continuity.scripts import shared
from benchmarks.continuity.scripts.base import Batch, Config, mse, net, recipe, scratch, unregistered
from segue.recipe import Recipe

progress: contextvars.ContextVar[int] = contextvars.ContextVar("progress", default=0)
local = threading.local()
ages: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
REGISTRY: dict[str, Any] = {}


@unregistered("context variable", "progress")
def context_variable(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        progress.set(progress.get() + 1)
        return mse(model, batch) * (1 + progress.get() / 100)

    # The value of a context outlives the module; a new process begins without one.
    progress.set(0)
    return recipe(loss=loss)


@unregistered("thread-local value", "local")
def thread_local(config: Config) -> Recipe:
    local.weight = 1.0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        local.weight *= 0.99
        return mse(model, batch) * local.weight

    return recipe(loss=loss)


@unregistered("weak dictionary by module", "ages")
def weak_dictionary(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        ages[model] = ages.get(model, 0) + 1
        return mse(model, batch) * (1 + 0.01 * ages[model])

    return recipe(loss=loss)


class _Node:
    def __init__(self) -> None:
        self.visits = 0


@unregistered("object behind a weak reference", "visits", "node")
def weak_reference(config: Config) -> Recipe:
    node = _Node()
    REGISTRY["node"] = node
    link = weakref.ref(node)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found = link()
        assert found is not None
        found.visits += 1
        return mse(model, batch) * (1 + 0.01 * found.visits)

    return recipe(loss=loss)


@unregistered(
    "counter in a temporary file",
    "state.json",
    components=frozenset({"unregistered state", "something outside the checkpoint", "file"}),
)
def temporary_file(config: Config) -> Recipe:
    path = scratch("state.json")

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        done = json.loads(path.read_text())["done"] if path.exists() else 0
        path.write_text(json.dumps({"done": done + 1}))
        return mse(model, batch) * (1 + done / 100)

    return recipe(loss=loss)


@unregistered(
    "counter in the environment",
    "TRAIN_PROGRESS",
    components=frozenset({"unregistered state", "something outside the checkpoint", "environment"}),
)
def environment_variable(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        done = int(os.environ.get("TRAIN_PROGRESS", "0"))
        os.environ["TRAIN_PROGRESS"] = str(done + 1)
        return mse(model, batch) * (1 + done / 100)

    return recipe(loss=loss)


@unregistered("another module's global", "temperature")
def other_module(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * shared.cooled()

    return recipe(loss=loss)


@unregistered("another module's object", "meter", "total", "count")
def other_modules_object(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        shared.meter.update(value.item())
        return value / shared.meter.mean

    return recipe(loss=loss)


class Settings:
    """The one instance of a program's settings."""

    _only: ClassVar[Settings | None] = None

    def __new__(cls) -> Settings:
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only.level = 0
        return cls._only

    level: int


@unregistered("singleton", "level", "Settings", "_only")
def singleton(config: Config) -> Recipe:
    def after_step(step: int) -> None:
        Settings().level += 1

    return recipe(loss=lambda model, batch: mse(model, batch) * (1 + 0.02 * Settings().level), after_step=after_step)


@unregistered("registry of objects by name", "REGISTRY", "sharpness")
def registry(config: Config) -> Recipe:
    REGISTRY["sharpness"] = torch.ones(1)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        REGISTRY["sharpness"] = REGISTRY["sharpness"] * 1.01
        return mse(model, batch) * REGISTRY["sharpness"].mean()

    return recipe(loss=loss)


@unregistered("attribute set on the model's class", "temperature")
def class_of_model(config: Config) -> Recipe:
    class Net(nn.Module):
        temperature = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                Net.temperature *= 0.99
            found: torch.Tensor = self.body(x)
            return found * Net.temperature

    return recipe(Net())


@unregistered("attribute put on the loader", "difficulty")
def attribute_of_loader(config: Config) -> Recipe:
    made = recipe()
    made.data.difficulty = 1.0  # type: ignore[attr-defined]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        made.data.difficulty += 0.01  # type: ignore[attr-defined]
        return mse(model, batch) * made.data.difficulty  # type: ignore[attr-defined]

    made.loss = loss
    return made


@unregistered("attribute put on a parameter", "momentum", "score")
def attribute_of_parameter(config: Config) -> Recipe:
    model = net()
    for parameter in model.parameters():
        parameter.score = torch.zeros_like(parameter)  # type: ignore[attr-defined]

    def after_step(step: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.score.lerp_(parameter, 0.1)  # type: ignore[attr-defined]
                parameter.sub_(1e-3 * parameter.score)  # type: ignore[attr-defined]

    return recipe(model, after_step=after_step)
