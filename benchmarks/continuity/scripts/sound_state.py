"""Sound scripts whose state is pure, derived from the step, registered in another form, or seeded for each use."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, WeightedRandomSampler, default_collate
from torch.utils.data.sampler import Sampler

from benchmarks.continuity.scripts.base import SAMPLES, Batch, Config, loader, mse, net, recipe, samples, sound
from segue.recipe import Recipe
from segue.testing.recipes import Average


@sound("memo table of a pure function")
def memo(config: Config) -> Recipe:
    table: dict[int, float] = {}

    def weight(n: int) -> float:
        if n not in table:
            table[n] = 1.0 + 1.0 / n
        return table[n]

    return recipe(loss=lambda model, batch: mse(model, batch) * weight(len(batch[0])))


@sound("lru_cache of a pure function")
def cached(config: Config) -> Recipe:
    @functools.lru_cache(maxsize=128)
    def mask(rows: int) -> torch.Tensor:
        return torch.linspace(0.5, 1.0, rows).reshape(-1, 1)

    return recipe(loss=lambda model, batch: (mask(len(batch[0])) * (model(batch[0]) - batch[1]) ** 2).mean())


class _Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = samples()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


@sound("lazily filled cache of a dataset")
def dataset_cache(config: Config) -> Recipe:
    class Cached(_Rows):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, torch.Tensor] = {}
            self.hits = 0

        def __getitem__(self, index: int) -> Any:
            self.hits += index in self.cache
            if index not in self.cache:
                self.cache[index] = torch.tanh(self.x[index])
            return self.cache[index], self.y[index]

    return recipe(data=loader(Cached()))


@sound("dataset that seeds itself by index")
def seeded_by_index(config: Config) -> Recipe:
    class Seeded(_Rows):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(0)

        def __getitem__(self, index: int) -> Any:
            self.rng = np.random.default_rng(index)
            return self.x[index] + 0.1 * float(self.rng.standard_normal()), self.y[index]

    return recipe(data=loader(Seeded()))


@sound("generator seeded again in each step")
def seeded_each_step(config: Config) -> Recipe:
    noise, step_now = torch.Generator(), [0]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        noise.manual_seed(int(batch[0].abs().sum().item() * 1000))
        return functional.mse_loss(model(batch[0] + 0.1 * torch.randn(batch[0].shape, generator=noise)), batch[1])

    def after_step(step: int) -> None:
        step_now[0] = step

    return recipe(loss=loss, after_step=after_step)


@sound("weight derived from the step in after_step, for a log")
def derived_for_log(config: Config) -> Recipe:
    state = {"weight": 1.0, "epoch": 0}

    def after_step(step: int) -> None:
        state["weight"] = 0.99**step
        state["epoch"] = step // 14

    return recipe(after_step=after_step)


@sound("rate derived from the step in after_step")
def derived_rate(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def after_step(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + step / 50)

    return recipe(model, optimizer=optimizer, after_step=after_step)


@sound("registered EMA")
def registered_average(config: Config) -> Recipe:
    model = net()
    average = Average(model, 0.95)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        pull = sum((p - average._values[n]).square().sum() for n, p in model.named_parameters())
        return mse(model, batch) + 0.1 * pull

    return recipe(model, loss, after_step=average.update, extra={"ema": average})


class _AsNumpy:
    """An object whose state has NumPy arrays, a list and other keys."""

    def __init__(self) -> None:
        self.mean, self.history, self.count = torch.zeros(3), [1.0], 0

    def update(self, value: float) -> None:
        self.mean = 0.9 * self.mean + 0.1 * value
        self.history.append(value)
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"m": self.mean.numpy(), "tail": self.history[-5:], "n": str(self.count)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mean = torch.from_numpy(np.array(state_dict["m"]))
        self.history, self.count = list(state_dict["tail"]), int(state_dict["n"])


@sound("registered state in another form")
def transformed_state(config: Config) -> Recipe:
    stats = _AsNumpy()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        scaled = value * (1 + stats.mean.mean() + sum(stats.history[-5:]) / 100 + stats.count / 1000)
        stats.update(value.item())
        return scaled

    return recipe(loss=loss, extra={"numbers": stats})


class _Holder:
    """An object that registers the state of another object."""

    def __init__(self, state: dict[str, float]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {"a": self._state["weight"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state["weight"] = float(state_dict["a"])


@sound("closure's dict registered by a holder of another name")
def held_elsewhere(config: Config) -> Recipe:
    state = {"weight": 1.0}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        state["weight"] *= 0.99
        return mse(model, batch) * state["weight"]

    return recipe(loss=loss, extra={"something": _Holder(state)})


class _Random:
    def __init__(self) -> None:
        self.dice, self.noise = random.Random(4), torch.Generator().manual_seed(4)

    def state_dict(self) -> dict[str, Any]:
        return {"dice": self.dice.getstate(), "noise": self.noise.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        version, words, rest = state_dict["dice"]
        self.dice.setstate((version, tuple(words), rest))
        self.noise.set_state(state_dict["noise"])


@sound("registered generators")
def registered_generators(config: Config) -> Recipe:
    streams = _Random()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        noise = torch.randn(batch[0].shape, generator=streams.noise)
        return functional.mse_loss(model(batch[0] + 0.1 * noise), batch[1]) * streams.dice.uniform(0.9, 1.1)

    return recipe(loss=loss, extra={"streams": streams})


@sound("registered teacher")
def registered_teacher(config: Config) -> Recipe:
    model = net()
    teacher = copy.deepcopy(model).eval()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(batch[0])
        return mse(model, batch) + 0.2 * functional.mse_loss(model(batch[0]), wanted)

    def after_step(step: int) -> None:
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.05)

    return recipe(model, loss, after_step=after_step, extra={"teacher": teacher})


@sound("frozen teacher that nobody changes")
def frozen_teacher(config: Config) -> Recipe:
    teacher = net().eval().requires_grad_(False)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) + 0.1 * functional.mse_loss(model(batch[0]), teacher(batch[0]))

    return recipe(loss=loss)


@sound("average that nothing uses")
def unused_average(config: Config) -> Recipe:
    model = net()
    kept = copy.deepcopy(model)

    def after_step(step: int) -> None:
        with torch.no_grad():
            for old, new in zip(kept.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)

    return recipe(model, after_step=after_step)


@sound("second optimizer, registered")
def registered_optimizer(config: Config) -> Recipe:
    model, side = net(), nn.Linear(8, 1)
    side_optimizer = torch.optim.Adam(side.parameters(), lr=1e-2)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        side_optimizer.zero_grad()
        functional.l1_loss(side(batch[0]), batch[1]).backward()
        side_optimizer.step()
        return functional.mse_loss(model(batch[0]) + side(batch[0]).detach(), batch[1])

    return recipe(model, loss, extra={"side": side, "side_optimizer": side_optimizer})


@sound("learning rate finder that is idle")
def idle_finder(config: Config) -> Recipe:
    class Finder:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.history, self.is_on = optimizer, [1e-5], False

        def step(self, value: float) -> None:
            if self.is_on:
                self.optimizer.param_groups[0]["lr"] *= 1.1
            self.history.append(value)

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    finder = Finder(optimizer)
    return recipe(model, optimizer=optimizer, after_step=lambda step, metrics: finder.step(metrics["loss"]))


@sound("weighted sampler")
def weighted(config: Config) -> Recipe:
    sampler = WeightedRandomSampler(torch.linspace(0.1, 1.0, SAMPLES).tolist(), SAMPLES)
    return recipe(data=loader(sampler=sampler, shuffle=False))


@sound("sampler that counts its passes in an attribute")
def counting_sampler(config: Config) -> Recipe:
    class Counting(Sampler[int]):
        passes = 0

        def __len__(self) -> int:
            return SAMPLES

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(torch.randperm(SAMPLES).tolist())

    return recipe(data=loader(sampler=Counting(), shuffle=False))


@sound("two persistent workers", is_alone=True)
def workers(config: Config) -> Recipe:
    data = loader(num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    return recipe(data=data)


@sound("mixup from the global streams")
def mixup(config: Config) -> Recipe:
    def collate(rows: list[Any]) -> list[torch.Tensor]:
        x, y = default_collate(rows)
        mix = random.betavariate(0.4, 0.4)
        return [mix * x + (1 - mix) * x.flip(0), mix * y + (1 - mix) * y.flip(0)]

    return recipe(data=loader(collate_fn=collate))


@sound("buffer of scratch memory that each step writes anew")
def scratch_memory(config: Config) -> Recipe:
    space = torch.empty(16, 8)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        space.copy_(batch[0]).mul_(0.5)
        return functional.mse_loss(model(space), batch[1])

    return recipe(loss=loss)


@sound("last batch remembered and never used")
def last_batch(config: Config) -> Recipe:
    class Loss:
        last: Any = None

        def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
            self.last = batch
            return mse(model, batch)

    return recipe(loss=Loss())


@sound("default argument used as a cache")
def default_cache(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch, cache: dict[int, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
        rows = len(batch[0])
        if rows not in cache:
            cache[rows] = torch.arange(rows).reshape(-1, 1) / rows
        return ((1 + cache[rows]) * (model(batch[0]) - batch[1]) ** 2).mean()

    return recipe(loss=loss)
