"""Inputs that differ after a resume: environment, files, global flags, machines, time."""

from __future__ import annotations

import csv
import json
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

from benchmarks.continuity.blind.cases import ANY, Axis, Build, Moment, World, case
from benchmarks.continuity.scripts import shared
from benchmarks.continuity.scripts.base import SAMPLES, Batch, Config, loader, mse, net, recipe, samples, scratch
from segue.recipe import Recipe


def drift(name: str, *names: str, world: World, **fields: Any) -> Callable[[Build], Build]:
    """A case in which inputs of the script differ after the resume."""
    common: dict[str, Any] = {"components": frozenset({ANY}), "world": world}
    return case(name, Axis.DRIFT, *names, **(common | fields))


def _variable(name: str, before: str, after: str) -> World:
    def set_it(moment: Moment) -> None:
        os.environ[name] = after if moment.attempt else before

    return set_it


def _file(name: str, before: str, after: str) -> World:
    def write(moment: Moment) -> None:
        (moment.folder / name).write_text(after if moment.attempt else before)

    return write


@drift("environment variable read in each step", "LOSS_WEIGHT", world=_variable("LOSS_WEIGHT", "1.0", "0.8"))
def variable_in_step(config: Config) -> Recipe:
    return recipe(loss=lambda model, batch: mse(model, batch) * float(os.environ["LOSS_WEIGHT"]))


@drift("environment variable read by a helper", "SMOOTH", world=_variable("SMOOTH", "0", "1"))
def variable_in_helper(config: Config) -> Recipe:
    def is_smooth() -> bool:
        return os.getenv("SMOOTH", "0") == "1"

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return functional.smooth_l1_loss(model(x), y) if is_smooth() else functional.mse_loss(model(x), y)

    return recipe(loss=loss)


@drift("environment variable read in build", "DROPOUT", "p", world=_variable("DROPOUT", "0.1", "0.3"))
def variable_in_build(config: Config) -> Recipe:
    rate = float(os.environ["DROPOUT"])
    return recipe(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(rate), nn.Linear(16, 1)))


@drift("environment variable read by a dataset", "NOISE", world=_variable("NOISE", "0.1", "0.2"))
def variable_in_dataset(config: Config) -> Recipe:
    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = samples()

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return self.x[index] + float(os.environ["NOISE"]) * torch.sin(self.x[index]), self.y[index]

    return recipe(data=loader(Noisy()))


@drift(
    "settings file read in each step",
    "settings.json",
    "settings",
    world=_file("settings.json", '{"weight": 1.0}', '{"weight": 1.5}'),
)
def file_in_step(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * json.loads(scratch("settings.json").read_text())["weight"]

    return recipe(loss=loss)


@drift(
    "settings file read in build",
    "weight",
    "settings",
    world=_file("settings.json", '{"weight": 1.0}', '{"weight": 1.5}'),
)
def file_in_build(config: Config) -> Recipe:
    weight = json.loads(scratch("settings.json").read_text())["weight"]
    return recipe(loss=lambda model, batch: mse(model, batch) * weight)


def _write_rows(moment: Moment) -> None:
    x, y = samples()
    rows = torch.cat([x, y], dim=1).tolist()
    with (moment.folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(sorted(rows) if moment.attempt else rows)


class _Csv(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        with path.open(newline="") as file:
            self.rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index, :8], self.rows[index, 8:]


@drift("rows of a file sorted again", "rows", "data", "samples", world=_write_rows)
def sorted_rows(config: Config) -> Recipe:
    return recipe(data=loader(_Csv(scratch("rows.csv"))))


def _write_files(moment: Moment) -> None:
    x, y = samples()
    for n in range(SAMPLES):
        name = f"{n}.pt" if moment.attempt == 0 else f"{n:04d}.pt"
        torch.save((x[n], y[n]), moment.folder / name)


class _Lazy(Dataset[Any]):
    """A data set that opens a file for each sample, in the order of the file names."""

    def __init__(self) -> None:
        self.folder = scratch("")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".pt"))
        return torch.load(Path(self.folder) / names[index])


@drift("files renamed, so that they sort differently", "data", "samples", world=_write_files)
def renamed_files(config: Config) -> Recipe:
    return recipe(data=loader(_Lazy()))


def _write_cache(moment: Moment) -> None:
    x, y = samples()
    torch.save((x if moment.attempt == 0 else 1.05 * x, y), moment.folder / "cache.pt")


class _Memory(Dataset[Any]):
    def __init__(self) -> None:
        self._cache: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self._cache is None:
            self._cache = torch.load(scratch("cache.pt"))
        x, y = self._cache
        return x[index], y[index]


@drift("stale cache of preprocessed samples", "cache", "data", "samples", world=_write_cache)
def stale_cache(config: Config) -> Recipe:
    return recipe(data=loader(_Memory()))


def _write_teacher(moment: Moment) -> None:
    made = torch.Generator().manual_seed(5 + moment.attempt)
    torch.save(torch.randn(8, 1, generator=made), moment.folder / "teacher.pt")


@drift("file of a teacher replaced", "teacher", world=_write_teacher)
def replaced_teacher(config: Config) -> Recipe:
    teacher = torch.load(scratch("teacher.pt"))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) + 0.1 * functional.mse_loss(model(batch[0]), batch[0] @ teacher)

    return recipe(loss=loss)


@drift(
    "label map written in another order",
    "labels",
    world=_file("labels.json", '["cat", "dog", "bird"]', '["bird", "cat", "dog"]'),
)
def label_map(config: Config) -> Recipe:
    labels = {name: n for n, name in enumerate(json.loads(scratch("labels.json").read_text()))}
    weights = torch.tensor([1.0, 0.5, 2.0])
    return recipe(loss=lambda model, batch: mse(model, batch) * weights[labels["dog"]])


def _default_type(moment: Moment) -> None:
    torch.set_default_dtype(torch.float64 if moment.attempt else torch.float32)


@drift("torch's default type", "dtype", "float64", world=_default_type, is_refused=True)
def default_type(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        weight = torch.linspace(0.1, 1.0, len(batch[0])).reshape(-1, 1)
        return (weight * (model(batch[0]) - batch[1]).double() ** 2).mean().float()

    return recipe(nn.Sequential(nn.Linear(8, 16, dtype=torch.float32), nn.Linear(16, 1, dtype=torch.float32)), loss)


def _denormals(moment: Moment) -> None:
    torch.set_flush_denormal(bool(moment.attempt))


@drift("flag that flushes denormal numbers", "denormal", world=_denormals)
def flushed(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        tiny = (batch[0] * 1e-39 * 1.5).abs().sum() * 1e38
        return mse(model, batch) * (1 + tiny)

    return recipe(loss=loss)


def _mkldnn(moment: Moment) -> None:
    torch.backends.mkldnn.enabled = not moment.attempt


@drift("oneDNN switched off", "mkldnn", world=_mkldnn)
def without_mkldnn(config: Config) -> Recipe:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(32, 8, 3),
        nn.Flatten(),
        nn.Linear(48, 1),
    )
    return recipe(model)


def _precision(moment: Moment) -> None:
    torch.set_float32_matmul_precision("medium" if moment.attempt else "highest")


@drift("precision of matrix products", "precision", "matmul", world=_precision)
def matmul_precision(config: Config) -> Recipe:
    model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    return recipe(model)


def _library_default(moment: Moment) -> None:
    if moment.attempt:
        shared.temperature = 0.5


@drift("default of a library", "temperature", world=_library_default)
def library_default(config: Config) -> Recipe:
    return recipe(loss=lambda model, batch: mse(model, batch) * shared.temperature)


def _workers(moment: Moment) -> None:
    os.environ["WORKERS"] = "2" if moment.attempt else "0"


class _SeededByWorker(Dataset[Any]):
    """A data set that augments with a generator of the process that fetches a sample."""

    def __init__(self) -> None:
        self.x, self.y = samples()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        shift = 0.0 if info is None else 0.1 * (info.id + 1)
        return self.x[index] + shift + 0.1 * random.random(), self.y[index]


@drift("number of workers, with augmentation by worker", "workers", "data", "samples", world=_workers, is_alone=True)
def worker_count(config: Config) -> Recipe:
    workers = int(os.environ["WORKERS"])
    context = "fork" if workers else None
    return recipe(data=loader(_SeededByWorker(), num_workers=workers, multiprocessing_context=context))


@drift("batch size from the number of cores", "batch_size", "batch", "samples", world=_variable("CORES", "8", "4"))
def batch_by_cores(config: Config) -> Recipe:
    return recipe(data=loader(batch_size=2 * int(os.environ["CORES"])))


@drift(
    "order of a set of names, as a map of classes",
    "index",
    "classes",
    "shares",
    world=_variable("NAMES", "1", "2"),
    is_alone=True,
)
def hash_order(config: Config) -> Recipe:
    classes = list({"cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "hen", "duck"})
    index = {name: n for n, name in enumerate(classes)}
    weights = torch.linspace(0.5, 2.0, 10)
    shares = torch.tensor([weights[n] * sum(map(ord, name)) for name, n in index.items()])
    return recipe(loss=lambda model, batch: mse(model, batch) * (shares * weights).mean() / 500)


@drift("schedule by the date", "date", "now", "today", world=_variable("TODAY_OFFSET", "0", "3"))
def date_schedule(config: Config) -> Recipe:
    def today() -> datetime:
        return datetime.now(UTC) + timedelta(days=int(os.environ["TODAY_OFFSET"]))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * (1 + 0.1 * (today().toordinal() % 7))

    return recipe(loss=loss)


@drift("time zone of a feature", "TZ", "timezone", world=_variable("TZ", "UTC", "Asia/Tokyo"))
def time_zone(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        time.tzset()
        hour = time.localtime(1_700_000_000).tm_hour
        return mse(model, batch) * (1 + hour / 24)

    return recipe(loss=loss)


def _threshold(moment: Moment) -> None:
    np.save(moment.folder / "mean.npy", np.full(8, 0.1 + 0.1 * moment.attempt))


@drift("statistics file computed again", "mean", "data", "samples", world=_threshold)
def statistics_file(config: Config) -> Recipe:
    mean = torch.from_numpy(np.load(scratch("mean.npy"))).float()

    def collate(rows: list[Any]) -> list[torch.Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return [x - mean, y]

    return recipe(data=loader(collate_fn=collate))


def _gradients_on(moment: Moment) -> None:
    os.environ["USE_CLIP"] = "0" if moment.attempt else "1"


@drift("feature flag in after_step", "USE_CLIP", world=_gradients_on)
def flag_in_after_step(config: Config) -> Recipe:
    model = net()

    def after_step(step: int) -> None:
        if os.environ.get("USE_CLIP") == "1":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.3, 0.3)

    return recipe(model, after_step=after_step)


@drift(
    "file that grows while it is trained on",
    "feed",
    "data",
    "samples",
    world=_file("feed.txt", "0.1\n" * 50, "0.1\n" * 50 + "0.9\n" * 10),
)
def growing_file(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        values = [float(line) for line in scratch("feed.txt").read_text().split()]
        return mse(model, batch) * (1 + sum(values) / len(values))

    return recipe(loss=loss)
