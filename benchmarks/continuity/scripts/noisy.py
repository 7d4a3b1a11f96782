"""Sound scripts whose kernels are not deterministic: noise on the gradients, an accumulating index_put, bf16."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.blind.cases import Axis, Build, case
from benchmarks.continuity.scripts.base import Batch, Config, loader, mse, net, recipe
from segue.recipe import Recipe

_NODES, _EDGES, _HIDDEN = 64, 4096, 16


def noisy(name: str, **fields: Any) -> Callable[[Build], Build]:
    """A recipe that two runs from one state do not repeat bit for bit."""
    return case(name, Axis.NOISE, is_sound=True, **fields)


def with_noise(config: Config) -> Recipe:
    """The script with the path `of`, with a relative error of this `size` on its gradients; in bf16 if `is_bf16`."""
    module, _, name = config["of"].partition(":")
    made: Recipe = getattr(importlib.import_module(module), name)({})
    if config["size"]:
        _perturb(made.model, config["size"])
    if config.get("is_bf16"):
        _in_bf16(made.model)
    return made


def _in_bf16(model: nn.Module) -> None:
    """The model computes in bf16, and returns float32."""
    entered: list[Any] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(torch.autocast("cpu", dtype=torch.bfloat16))
        entered[-1].__enter__()

    def leave(module: nn.Module, args: Any, found: Any) -> Any:
        entered.pop().__exit__(None, None, None)
        return found.float() if isinstance(found, torch.Tensor) else found

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)


def _perturbed(size: float) -> nn.Sequential:
    """A network whose gradients have a relative error of this size, which differs each time."""
    model = net()
    _perturb(model, size)
    return model


def _perturb(model: nn.Module, size: float) -> None:
    def perturb(grad: torch.Tensor) -> torch.Tensor:
        # A new generator each time: nothing is kept, as in a kernel whose threads race.
        chance = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
        return grad * (1 + size * torch.randn(grad.shape, generator=chance))

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(perturb)  # type: ignore[no-untyped-call]


def _perturbed_recipe(size: float) -> Recipe:
    model = _perturbed(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    return recipe(model, optimizer=optimizer)


@noisy("noise of 1e-7")
def noise_1e_7(config: Config) -> Recipe:
    return _perturbed_recipe(1e-7)


@noisy("noise of 1e-5")
def noise_1e_5(config: Config) -> Recipe:
    return _perturbed_recipe(1e-5)


@noisy("noise of 1e-3")
def noise_1e_3(config: Config) -> Recipe:
    return _perturbed_recipe(1e-3)


class _Graph(nn.Module):
    """A layer that sums messages over the edges of a graph by a scatter."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(2)
        self.ends = torch.randint(_NODES, (_EDGES,), generator=made)
        self.enter, self.leave = nn.Linear(8, _HIDDEN), nn.Linear(_HIDDEN, 1)
        self.norm, self.dropout = nn.BatchNorm1d(_HIDDEN), nn.Dropout(0.1)
        self.edges = nn.Parameter(torch.randn(_EDGES, _HIDDEN) / 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        messages = torch.tanh(self.edges * x.mean() + self.edges)
        nodes = torch.zeros(_NODES, _HIDDEN).index_put((self.ends,), messages, accumulate=True)
        hidden = self.norm(self.enter(x) + nodes.mean(0) + nodes[: len(x)])
        found: torch.Tensor = self.leave(self.dropout(hidden.relu()))
        return found


def _graph_recipe(loss: Callable[[nn.Module, Batch], torch.Tensor]) -> Recipe:
    model = _Graph()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    return recipe(model, loss, optimizer=optimizer, data=loader())


@noisy("index_put on two threads", threads=2)
def index_put(config: Config) -> Recipe:
    return _graph_recipe(mse)


@noisy("index_put on two threads, bf16 autocast", threads=2)
def index_put_bf16(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(batch[0])
        return functional.mse_loss(found.float(), batch[1])

    return _graph_recipe(loss)


@noisy("noise of 1e-3, bf16 autocast")
def noise_bf16(config: Config) -> Recipe:
    model = _perturbed(1e-3)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(batch[0])
        return functional.mse_loss(found.float(), batch[1])

    return recipe(model, loss)
