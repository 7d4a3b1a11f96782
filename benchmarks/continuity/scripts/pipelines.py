"""State in the data pipeline: dataset, collate, samplers, transforms, mixup, curriculum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, Dataset, Sampler, TensorDataset, WeightedRandomSampler, default_collate

from benchmarks.continuity.blind.cases import UNREGISTERED
from benchmarks.continuity.scripts.base import SAMPLES, Batch, Config, loader, mse, recipe, samples, unregistered
from segue.recipe import Recipe

_DATA = UNREGISTERED | {"data content", "data order"}
Pair = tuple[torch.Tensor, torch.Tensor]


class _Rows(Dataset[Pair]):
    def __init__(self) -> None:
        self.x, self.y = samples()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Pair:
        return self.x[index], self.y[index]


class _Counting(_Rows):
    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def __getitem__(self, index: int) -> Pair:
        self.fetched += 1
        x, y = super().__getitem__(index)
        return x * (1 + self.fetched / 5000), y


@unregistered("counter of a dataset", "fetched", components=_DATA)
def dataset_counter(config: Config) -> Recipe:
    return recipe(data=loader(_Counting()))


class _OwnGenerator(_Rows):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(11)

    def __getitem__(self, index: int) -> Pair:
        x, y = super().__getitem__(index)
        return x + 0.1 * float(self.rng.standard_normal()), y


@unregistered("generator of a dataset", "rng", components=_DATA)
def dataset_generator(config: Config) -> Recipe:
    return recipe(data=loader(_OwnGenerator()))


class _Difficulty(_Rows):
    """A data set that adds more noise to samples as training proceeds."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 0.0

    def __getitem__(self, index: int) -> Pair:
        x, y = super().__getitem__(index)
        return x + self.level * torch.sin(x), y


@unregistered("curriculum in a dataset, set by after_step", "level", components=_DATA)
def dataset_curriculum(config: Config) -> Recipe:
    dataset = _Difficulty()

    def after_step(step: int) -> None:
        dataset.level = min(1.0, dataset.level + 0.01)

    return recipe(data=loader(dataset), after_step=after_step)


class _Mixed:
    """A collate function that mixes a batch with the previous batch."""

    def __init__(self) -> None:
        self.last: list[torch.Tensor] | None = None

    def __call__(self, rows: list[Pair]) -> list[torch.Tensor]:
        batch = default_collate(rows)
        kept = [part.clone() for part in batch]
        if self.last is not None and len(self.last[0]) == len(batch[0]):
            batch = [0.8 * now + 0.2 * then for now, then in zip(batch, self.last, strict=True)]
        self.last = kept
        return list(batch)


@unregistered("last batch in a collate function", "last", components=_DATA)
def collate_memory(config: Config) -> Recipe:
    return recipe(data=loader(collate_fn=_Mixed()))


@unregistered("closure of a collate function", "batches", components=_DATA)
def collate_closure(config: Config) -> Recipe:
    batches = 0

    def collate(rows: list[Pair]) -> list[torch.Tensor]:
        nonlocal batches
        batches += 1
        x, y = default_collate(rows)
        return [x * (1 + batches / 200), y]

    return recipe(data=loader(collate_fn=collate))


class _Jitter:
    def __init__(self) -> None:
        self.applied = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.applied += 1
        return x + 0.0001 * self.applied


class _Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class _Transformed(_Rows):
    def __init__(self, transform: _Compose) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Pair:
        x, y = super().__getitem__(index)
        return self.transform(x), y


@unregistered("transform in a nested list", "applied", components=_DATA)
def nested_transform(config: Config) -> Recipe:
    transform = _Compose([lambda x: x, _Compose([_Jitter()])])
    return recipe(data=loader(_Transformed(transform)))


class _FromLoss(Sampler[int]):
    """A sampler whose order in an epoch depends on losses of the previous epoch."""

    def __init__(self) -> None:
        self.priority = np.ones(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(np.argsort(self.priority, kind="stable").tolist())


@unregistered("priorities of a sampler", "priority", components=_DATA, window=8, is_refused=True)
def prioritized_sampler(config: Config) -> Recipe:
    sampler = _FromLoss()

    def after_step(step: int) -> None:
        sampler.priority[step % SAMPLES] -= step

    return recipe(data=loader(sampler=sampler, shuffle=False), after_step=after_step)


@unregistered("weights of a WeightedRandomSampler", "weights", components=_DATA, is_refused=True)
def weighted_sampler(config: Config) -> Recipe:
    sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)

    def after_step(step: int) -> None:
        sampler.weights[: step % SAMPLES] *= 0.9

    return recipe(data=loader(sampler=sampler, shuffle=False), after_step=after_step)


_passes = [0]


class _Growing(BatchSampler):
    """A sampler that begins each batch one position further in a fixed order."""

    def __init__(self) -> None:
        super().__init__(range(SAMPLES), 16, drop_last=True)

    def __iter__(self) -> Iterator[list[int]]:
        for n in range(len(self)):
            yield [(16 * n + k + _passes[0]) % SAMPLES for k in range(16)]
        _passes[0] += 1


@unregistered("passes that a batch sampler counts in its module", "_passes", components=_DATA, is_refused=True)
def batch_sampler(config: Config) -> Recipe:
    data = torch.utils.data.DataLoader(TensorDataset(*samples()), batch_sampler=_Growing())
    return recipe(data=data)


class _MixUp:
    def __init__(self) -> None:
        self.alpha = 1.0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> Pair:
        mix = random.betavariate(self.alpha, self.alpha)
        self.alpha *= 0.99
        return mix * x + (1 - mix) * x.flip(0), mix * y + (1 - mix) * y.flip(0)


@unregistered("strength of mixup", "alpha")
def mixup(config: Config) -> Recipe:
    mixed = _MixUp()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = mixed(*batch)
        return functional.mse_loss(model(x), y)

    return recipe(loss=loss)


class _Cached(_Rows):
    """A data set that augments a sample once, at its first fetch, and keeps the result."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Pair:
        if index not in self.cache:
            self.cache[index] = self.x[index] + 0.3 * torch.randn(8)
        return self.cache[index], self.y[index]


@unregistered("cache of augmented samples", "cache", components=_DATA)
def augmented_cache(config: Config) -> Recipe:
    return recipe(data=loader(_Cached()))


class _Relabelled(_Rows):
    """A data set whose targets move towards the model's own outputs."""


@unregistered("targets that training rewrites", "y", "targets", components=_DATA | {"setup.data"})
def pseudo_labels(config: Config) -> Recipe:
    dataset = _Relabelled()

    def after_step(step: int) -> None:
        rows = slice(4 * step % SAMPLES, 4 * step % SAMPLES + 64)
        dataset.y[rows] = 0.9 * dataset.y[rows]

    return recipe(data=loader(dataset), after_step=after_step)


_seed_of_worker = [0]


def _init_worker(worker: int) -> None:
    _seed_of_worker[0] += 1


@unregistered("module's list that the dataset reads", "stage", components=_DATA)
def global_of_dataset(config: Config) -> Recipe:
    class Staged(_Rows):
        stage = 1.0

        def __getitem__(self, index: int) -> Pair:
            x, y = super().__getitem__(index)
            return x * Staged.stage, y

    def after_step(step: int) -> None:
        Staged.stage += 0.005

    return recipe(data=loader(Staged(), worker_init_fn=_init_worker), after_step=after_step)


@unregistered("mean of batches in a loss that whitens", "mean_of_batches")
def whitening(config: Config) -> Recipe:
    mean_of_batches = torch.zeros(8)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        mean_of_batches.lerp_(x.mean(0), 0.05)
        return mse(model, [x - mean_of_batches, y])

    return recipe(loss=loss)
