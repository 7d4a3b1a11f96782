"""State in containers and streams: queues, heaps, counters, arrays, frames, generators of random numbers."""

from __future__ import annotations

import array
import heapq
import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.scripts.base import Batch, Config, mse, recipe, unregistered
from segue.recipe import Recipe


@unregistered("deque of past batches", "replay")
def replay_buffer(config: Config) -> Recipe:
    replay: deque[Batch] = deque(maxlen=100)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        if replay:
            value = value + 0.3 * mse(model, random.choice(replay))
        replay.append([part.clone() for part in batch])
        return value

    return recipe(loss=loss)


@unregistered("heap of the hardest batches", "hardest")
def heap(config: Config) -> Recipe:
    hardest: list[tuple[float, int]] = []

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        heapq.heappush(hardest, (-value.item(), len(hardest)))
        return value / -hardest[0][0]

    return recipe(loss=loss)


@unregistered("Counter of classes", "seen")
def class_counter(config: Config) -> Recipe:
    seen: Counter[bool] = Counter()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        seen.update((y > 0).flatten().tolist())
        share = torch.where(y > 0, seen[True], seen[False]) / seen.total()
        return ((model(x) - y) ** 2 / (0.5 + share)).mean()

    return recipe(loss=loss)


@unregistered("defaultdict of sums", "sums")
def sums_by_class(config: Config) -> Recipe:
    sums: defaultdict[str, float] = defaultdict(float)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        sums["all"] += value.item()
        sums["n"] += 1
        return value * sums["n"] / sums["all"]

    return recipe(loss=loss)


@unregistered("OrderedDict with the newest at its end", "recent")
def ordered(config: Config) -> Recipe:
    recent: OrderedDict[int, float] = OrderedDict()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        recent[int(batch[0].sum().item() * 1000)] = value.item()
        while len(recent) > 16:
            recent.popitem(last=False)
        return value / (0.1 + sum(recent.values()) / len(recent))

    return recipe(loss=loss)


@unregistered("set of samples seen", "visited")
def visited_set(config: Config) -> Recipe:
    visited: set[float] = set()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        keys = [round(value, 4) for value in x[:, 0].tolist()]
        weight = torch.tensor([0.5 if key in visited else 1.0 for key in keys]).reshape(-1, 1)
        visited.update(keys)
        return (weight * (model(x) - y) ** 2).mean()

    return recipe(loss=loss)


@unregistered("bytearray of flags", "flags")
def byte_flags(config: Config) -> Recipe:
    flags = bytearray(64)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        flags[sum(flags) % 64] = 1
        return mse(model, batch) * (1 + sum(flags) / 64)

    return recipe(loss=loss)


@unregistered("array.array of weights", "weights")
def plain_array(config: Config) -> Recipe:
    weights = array.array("d", [1.0] * 4)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        weights[0] = 0.99 * weights[0]
        return mse(model, batch) * sum(weights)

    return recipe(loss=loss)


@unregistered("numpy array of difficulties", "difficulty")
def numpy_array(config: Config) -> Recipe:
    difficulty = np.ones(8)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        difficulty[:] = 0.9 * difficulty + 0.1 * value.item()
        return value / float(difficulty.mean())

    return recipe(loss=loss)


@unregistered("pandas frame of results", "results")
def frame(config: Config) -> Recipe:
    results = pd.DataFrame({"loss": [1.0]})

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        results.loc[len(results)] = [value.item()]
        return value / float(results["loss"].mean())

    return recipe(loss=loss)


@unregistered("list of tensors", "memory")
def list_of_tensors(config: Config) -> Recipe:
    memory: list[torch.Tensor] = []

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        value = functional.mse_loss(found, y)
        if memory:
            value = value + 0.1 * (found.mean() - torch.stack(memory[-5:]).mean()) ** 2
        memory.append(found.detach().mean())
        return value

    return recipe(loss=loss)


@unregistered("torch.Generator seeded in build", "noise")
def torch_generator(config: Config) -> Recipe:
    noise = torch.Generator().manual_seed(3)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x + 0.1 * torch.randn(x.shape, generator=noise)), y)

    return recipe(loss=loss)


@unregistered("numpy Generator seeded in build", "rng")
def numpy_generator(config: Config) -> Recipe:
    rng = np.random.default_rng(3)
    return recipe(loss=lambda model, batch: mse(model, batch) * float(rng.uniform(0.5, 1.5)))


@unregistered("random.Random seeded in build", "dice")
def python_generator(config: Config) -> Recipe:
    dice = random.Random(3)
    return recipe(loss=lambda model, batch: mse(model, batch) * dice.uniform(0.5, 1.5))


@unregistered("numpy RandomState in an object", "state", "augment")
def random_state(config: Config) -> Recipe:
    class Augment:
        def __init__(self) -> None:
            self.state = np.random.RandomState(5)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(self.state.uniform(0.8, 1.2))

    augment = Augment()
    return recipe(loss=lambda model, batch: functional.mse_loss(model(augment(batch[0])), batch[1]))


@dataclass
class _Transition:
    x: torch.Tensor
    y: torch.Tensor
    error: float


@unregistered("deque of data classes", "replay", "transitions")
def transitions(config: Config) -> Recipe:
    replay: deque[_Transition] = deque(maxlen=20)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        if replay:
            worst = max(replay, key=lambda each: each.error)
            value = value + 0.3 * mse(model, [worst.x, worst.y])
        replay.append(_Transition(batch[0].clone(), batch[1].clone(), value.item()))
        return value

    return recipe(loss=loss)


@unregistered("table of values by state and action", "values")
def value_table(config: Config) -> Recipe:
    values: defaultdict[tuple[int, int], list[float]] = defaultdict(list)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        key = (int(x[0, 0] > 0), int(y[0, 0] > 0))
        value = mse(model, batch)
        values[key].append(value.item())
        return value / (0.1 + sum(values[key]) / len(values[key]))

    return recipe(loss=loss)
