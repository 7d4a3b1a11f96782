"""Values of the process or the machine on which no step depends."""

from __future__ import annotations

import getpass
import os
import platform
import random
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.blind.cases import Axis, Build, Moment, case
from benchmarks.continuity.scripts.base import Batch, Config, loader, mse, net, recipe, samples
from segue.recipe import Recipe


def _counted(moment: Moment) -> None:
    os.environ["RESTARTS"] = str(moment.attempt)
    os.environ["SLURM_JOB_ID"] = str(90_000 + 7 * moment.attempt)
    os.environ["MASTER_PORT"] = str(29_500 + moment.attempt)


def harmless(name: str, **fields: Any) -> Callable[[Build], Build]:
    """A value of the process that changes nothing."""
    common: dict[str, Any] = {"is_sound": True, "is_alone": True, "world": _counted}
    return case(name, Axis.PROCESS, **(common | fields))


class _Loss:
    def __init__(self, **notes: Any) -> None:
        self.__dict__.update(notes)

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch)


@harmless("run id in a loss object")
def run_id(config: Config) -> Recipe:
    return recipe(loss=_Loss(run_id=uuid.uuid4().hex, name=f"run-{uuid.uuid4()}"))


@harmless("pid and host in a model")
def pid_of_model(config: Config) -> Recipe:
    model = net()
    model.pid, model.host = os.getpid(), socket.gethostname()  # type: ignore[assignment]
    return recipe(model)


@harmless("job id and port in a loss object")
def job_of_loss(config: Config) -> Recipe:
    return recipe(loss=_Loss(job=int(os.environ["SLURM_JOB_ID"]), port=int(os.environ["MASTER_PORT"])))


@harmless("restart count in a default argument")
def restarts_in_default(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch, restarts: int = int(os.environ["RESTARTS"])) -> torch.Tensor:
        assert restarts >= 0
        return mse(model, batch)

    return recipe(loss=loss)


@harmless("resume flag in a closure")
def resume_flag(config: Config) -> Recipe:
    is_resumed = os.environ["RESTARTS"] != "0"

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        if is_resumed and not model.training:
            raise AssertionError
        return mse(model, batch)

    return recipe(loss=loss)


@harmless("resume flag in a model")
def resume_flag_of_model(config: Config) -> Recipe:
    model = net()
    model.is_resumed = os.environ["RESTARTS"] != "0"  # type: ignore[assignment]
    return recipe(model)


@harmless("temporary folder in a loss object")
def temporary_folder(config: Config) -> Recipe:
    return recipe(loss=_Loss(cache=tempfile.mkdtemp(), log=Path(tempfile.mkdtemp()) / "log.txt"))


@harmless("start time as text, number and datetime")
def start_time(config: Config) -> Recipe:
    now = datetime.now(UTC)
    return recipe(loss=_Loss(at=now, text=now.isoformat(), seconds=time.time(), ticks=time.monotonic_ns()))


@harmless("cpu count and affinity in a loss object")
def cpu_count(config: Config) -> Recipe:
    return recipe(loss=_Loss(cpus=os.cpu_count(), mine=sorted(os.sched_getaffinity(0)), load=os.getloadavg()[0]))


@harmless("list of a set of names")
def list_of_set(config: Config) -> Recipe:
    names = list({"loss", "lr", "grad_norm", "step", "epoch", "time", "memory", "samples", "tokens"})

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        assert "loss" in names
        return mse(model, batch)

    return recipe(loss=loss)


@harmless("list of a set in a model")
def list_of_set_in_model(config: Config) -> Recipe:
    model = net()
    model.logged = list({"a", "b", "c", "d", "e", "f", "g", "h"})  # type: ignore[assignment]
    return recipe(model)


@harmless("dict keyed in the order of a set")
def dict_of_set(config: Config) -> Recipe:
    columns = dict.fromkeys(set("abcdefghij"), 0)
    return recipe(loss=_Loss(columns=columns, first=next(iter(columns))))


@harmless("hash of a name for a log")
def hashed_name(config: Config) -> Recipe:
    return recipe(loss=_Loss(color=hash("train") % 256, key=id(object()) % 1000))


@harmless("unseeded name and jitter for a log")
def jitter(config: Config) -> Recipe:
    chance = random.SystemRandom()
    return recipe(loss=_Loss(retry_after=chance.random(), name=f"{chance.randrange(10**9):09d}"))


@dataclass
class _Settings:
    host: str = field(default_factory=socket.gethostname)
    user: str = field(default_factory=lambda: os.environ.get("USER", "nobody"))
    started: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    argv: list[str] = field(default_factory=lambda: [*sys.argv, platform.node(), str(os.getppid())])


@harmless("settings object with the process in it")
def settings_object(config: Config) -> Recipe:
    settings = _Settings()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        assert settings.host
        return mse(model, batch)

    return recipe(loss=loss, after_step=lambda step: setattr(settings, "user", getpass.__name__))


@harmless("open port and thread of a server")
def open_port(config: Config) -> Recipe:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    return recipe(loss=_Loss(server=server, port=port, thread=threading.get_ident(), lock=threading.Lock()))


@harmless("pid in a dataset")
def pid_of_dataset(config: Config) -> Recipe:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = samples()
            self.pid, self.opened_at, self.tag = os.getpid(), time.time(), uuid.uuid4().hex

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> Any:
            return self.x[index], self.y[index]

    return recipe(data=loader(Rows()))


STARTED = time.time()
RUN = f"{socket.gethostname()}-{os.getpid()}"


@harmless("module globals of the process")
def module_globals(config: Config) -> Recipe:
    speeds: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        speeds.append(time.time() - STARTED)
        assert RUN
        return mse(model, batch)

    return recipe(loss=loss)
