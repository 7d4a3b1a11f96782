"""Recipes that spread their model in ways of their own."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segue.recipe import Recipe
from tests.recipes.ranked import even


def bypassing(config: dict[str, Any]) -> Recipe:
    """Its loss calls the module inside, so that no process sums the gradients."""
    recipe = even(config)
    return replace(recipe, loss=lambda model, batch: nn.functional.mse_loss(model.module(batch[0]), batch[1]))


def thawing(config: dict[str, Any]) -> Recipe:
    """Its first layer is trained from step 7 on."""
    recipe = even(config)
    recipe.model[0].requires_grad_(False)

    def after_step(step: int) -> None:
        assert recipe.after_step is not None
        recipe.after_step(step)
        if step >= 7:
            recipe.model[0].requires_grad_(True)

    return replace(recipe, after_step=after_step)


def twice_updated(config: dict[str, Any]) -> Recipe:
    """A second optimizer trains the same sharded weights."""
    recipe = even(config | {"sharded": True})
    second = torch.optim.SGD(recipe.model.parameters(), lr=1e-3, momentum=0.9)

    def after_step(step: int) -> None:
        assert recipe.after_step is not None
        second.step()
        recipe.after_step(step)

    return replace(recipe, extra={"second": second}, after_step=after_step)


def tensor_parallel(config: dict[str, Any]) -> Recipe:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    recipe = even(config)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    parallelize_module(recipe.model, mesh, {"0": ColwiseParallel()})
    return replace(recipe, optimizer=torch.optim.AdamW(recipe.model.parameters()), scheduler=None)


def wrapped_inside(config: dict[str, Any]) -> Recipe:
    recipe = even(config)
    model = nn.Sequential(nn.parallel.DistributedDataParallel(recipe.model))
    return replace(recipe, model=model)


def checkpointed(config: dict[str, Any]) -> Recipe:
    """The even recipe with activation checkpointing. Config: use_reentrant, is_wrapped (in a DDP of its own)."""
    recipe = even({})
    inner = recipe.model

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            for _ in range(2):  # Used twice, as layers that are shared are.
                found = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=config["use_reentrant"])
            return found

    model: nn.Module = Checkpointed()
    if config.get("is_wrapped") and "RANK" in os.environ:
        model = nn.parallel.DistributedDataParallel(model, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return replace(recipe, model=model, optimizer=optimizer, scheduler=None, loss=loss)


def sharded_once(config: dict[str, Any]) -> Recipe:
    """Nothing but a sharded model."""
    return even(config | {"sharded": True, "width": 12})


def sharded_twice(config: dict[str, Any]) -> Recipe:
    """Two ranks. In `extra` is a matrix of the shape of the sharded model's first one, cut along the other side."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    recipe = even(config | {"sharded": True, "width": 12})
    twin = nn.Module()
    matrix = distribute_tensor(torch.arange(96.0).view(12, 8), init_device_mesh("cpu", (2,)), [Shard(1)])
    twin.matrix = nn.Parameter(matrix, requires_grad=False)

    def after_step(step: int) -> None:
        assert recipe.after_step is not None
        recipe.after_step(step)
        with torch.no_grad():
            twin.matrix.mul_(1.01)

    return replace(recipe, extra={"twin": twin}, after_step=after_step)


def shrinking(config: dict[str, Any]) -> Recipe:
    """Sharded; its second layer, which is not trained, is left out where the file `marker` exists."""
    recipe = even({"at": config.get("at")})
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    model[2].requires_grad_(False)
    if "RANK" in os.environ:
        from torch.distributed.fsdp import fully_shard

        left_out = set(model[2].parameters()) if Path(config["marker"]).exists() else None
        fully_shard(model[0])
        fully_shard(model, ignored_params=left_out)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return replace(recipe, model=model, optimizer=optimizer, scheduler=None)


def with_exit_function(config: dict[str, Any]) -> Recipe:
    """A thread and an exit function leave a file of each rank in the folder `config["left"]`."""
    rank = torch.distributed.get_rank()

    def leave(name: str) -> None:
        (Path(config["left"]) / f"{name}-{rank}").touch()

    def leave_late() -> None:
        threading.main_thread().join()  # Returns when the main thread is about to end.
        leave("thread")

    atexit.register(leave, "exit-function")
    threading.Thread(target=leave_late).start()
    return even({})
