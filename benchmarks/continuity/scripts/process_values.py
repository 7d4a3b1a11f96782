"""Values of the process or the machine that look harmless, but affect training."""

from __future__ import annotations

import os
import random
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.blind.cases import ANY, Axis, Build, Moment, case
from benchmarks.continuity.scripts.base import WIDTH, Batch, Config, loader, mse, net, recipe
from segue.recipe import Recipe

_FIRST_JOB = 4711
CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _counted(moment: Moment) -> None:
    os.environ["JOB_ATTEMPT"] = str(moment.attempt)
    os.environ["JOB_ID"] = str(_FIRST_JOB + 13 * moment.attempt)
    os.environ["MASTER_PORT"] = str(29500 + moment.attempt)


def steers(name: str, *names: str, **fields: Any) -> Callable[[Build], Build]:
    """A value of the process on which training depends."""
    common: dict[str, Any] = {"components": frozenset({ANY}), "is_alone": True, "world": _counted}
    return case(name, Axis.PROCESS, *names, **(common | fields))


@steers("weights of classes in the order of a set", "order", "weights", "sizes")
def order_of_set(config: Config) -> Recipe:
    order = list(set(CLASSES))
    weights = torch.tensor([1.0 + n / 10 for n in range(len(order))])
    sizes = torch.tensor([float(sum(map(ord, name))) for name in order])
    return recipe(loss=lambda model, batch: mse(model, batch) * (weights * sizes).mean() / 500)


class _ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.index = {name: n for n, name in enumerate(set(CLASSES))}
        self.scale = nn.Parameter(torch.arange(10) / 10 + 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found * sum(self.scale[self.index[name]] / (n + 1) for n, name in enumerate(CLASSES))


@steers("class ids in the order of a set", "index")
def ids_of_set(config: Config) -> Recipe:
    return recipe(_ByName())


@steers("bucket from hash() of a name", "bucket", "hash")
def hashed_bucket(config: Config) -> Recipe:
    buckets = torch.linspace(0.5, 1.5, 1009)
    bucket = hash("user-17") % 1009
    return recipe(loss=lambda model, batch: mse(model, batch) * buckets[bucket])


@steers("pid as a seed", "noise", "pid", "generator", "seed")
def seeded_by_pid(config: Config) -> Recipe:
    noise = torch.Generator().manual_seed(os.getpid())

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x + 0.1 * torch.randn(x.shape, generator=noise)), y)

    return recipe(loss=loss)


@steers("uuid as a seed", "dice", "seed")
def seeded_by_uuid(config: Config) -> Recipe:
    dice = random.Random(uuid.uuid4().int)
    return recipe(loss=lambda model, batch: mse(model, batch) * dice.uniform(0.5, 1.5))


@steers("job id chooses a branch", "job", "JOB_ID")
def branch_by_job(config: Config) -> Recipe:
    job = int(os.environ.get("JOB_ID", "0"))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        if job == _FIRST_JOB:
            return mse(model, batch)
        return functional.l1_loss(model(batch[0]), batch[1])

    return recipe(loss=loss)


@steers("restart count scales the loss", "restarts", "JOB_ATTEMPT")
def scaled_by_restarts(config: Config) -> Recipe:
    restarts = int(os.environ.get("JOB_ATTEMPT", "0"))
    return recipe(loss=lambda model, batch: mse(model, batch) / (1 + restarts))


@steers("restart count read in each step", "JOB_ATTEMPT")
def read_in_step(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * (1 + int(os.environ["JOB_ATTEMPT"]) / 10)

    return recipe(loss=loss)


@steers("restart count lowers the rate", "lr", "JOB_ATTEMPT")
def rate_by_restarts(config: Config) -> Recipe:
    model = net()
    rate = 0.02 * 0.5 ** int(os.environ.get("JOB_ATTEMPT", "0"))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def after_step(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate

    return recipe(model, optimizer=optimizer, after_step=after_step)


@steers("resume flag skips the warm-up", "resumed", "JOB_ATTEMPT", "factor")
def flag_skips_warm_up(config: Config) -> Recipe:
    resumed = os.environ.get("JOB_ATTEMPT", "0") != "0"

    def loss(model: nn.Module, batch: Batch, factor: float = 1.0 if resumed else 0.3) -> torch.Tensor:
        return mse(model, batch) * factor

    return recipe(loss=loss)


@steers("port chooses a slice of the data", "port", "MASTER_PORT", "samples")
def slice_by_port(config: Config) -> Recipe:
    port = int(os.environ.get("MASTER_PORT", "0"))

    def collate(rows: list[Any]) -> list[torch.Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return [x.roll(port % 7, 0), y]

    return recipe(data=loader(collate_fn=collate))


@steers("start time chooses the phase of a schedule", "started", "time")
def phase_by_start(config: Config) -> Recipe:
    started = time.time()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * (1 + 0.5 * torch.sin(torch.tensor(started)).item())

    return recipe(loss=loss)


@steers("time since the start in the loss", "time", "monotonic", "started")
def weight_by_clock(config: Config) -> Recipe:
    started = time.monotonic()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * (1 + 0.01 * (time.monotonic() - started))

    return recipe(loss=loss)


@steers("name of a temporary folder as a seed", "folder", "seed", "noise")
def seeded_by_folder(config: Config) -> Recipe:
    folder = tempfile.mkdtemp()
    noise = torch.randn(WIDTH, generator=torch.Generator().manual_seed(sum(map(ord, folder)) * ord(folder[-1])))
    return recipe(loss=lambda model, batch: mse(model, batch) * (1 + noise.mean()))


@steers("unseeded generator", "rng", "generator")
def unseeded(config: Config) -> Recipe:
    rng = random.SystemRandom()
    return recipe(loss=lambda model, batch: mse(model, batch) * rng.uniform(0.9, 1.1))


@steers("host and pid choose the dropout", "p", "rate", "Dropout")
def dropout_by_host(config: Config) -> Recipe:
    rate = (len(socket.gethostname()) + os.getpid() % 97) / 400
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Dropout(rate), nn.Linear(WIDTH, 1))
    return recipe(model)
