"""State in objects of the user's classes: callable losses, class attributes, slots, properties, nested objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.continuity.scripts.base import Batch, Config, mse, recipe, unregistered
from segue.recipe import Recipe


class _FocalLike:
    def __init__(self) -> None:
        self.gamma = 2.0

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        error = (model(x) - y).abs()
        self.gamma = max(0.5, self.gamma - 0.02)
        return (error**self.gamma).mean()


@unregistered("attribute of a callable loss", "gamma")
def callable_loss(config: Config) -> Recipe:
    return recipe(loss=_FocalLike())


class _Trainer:
    def __init__(self) -> None:
        self.global_step = 0

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self.global_step += 1
        return mse(model, batch) * min(1.0, 0.1 + self.global_step / 100)


@unregistered("attribute behind a bound method", "global_step")
def bound_method(config: Config) -> Recipe:
    return recipe(loss=_Trainer().loss)


class _Tracked:
    instances: ClassVar[int] = 0
    total: ClassVar[float] = 1.0

    def weight(self) -> float:
        type(self).total += 0.01
        return type(self).total


@unregistered("class attribute through type(self)", "total")
def class_through_type(config: Config) -> Recipe:
    tracked = _Tracked()
    return recipe(loss=lambda model, batch: mse(model, batch) * tracked.weight())


class _Curriculum:
    stage = 0

    @classmethod
    def advance(cls) -> None:
        cls.stage += 1


@unregistered("counter of a class method", "stage")
def class_method(config: Config) -> Recipe:
    return recipe(
        loss=lambda model, batch: mse(model, batch) * (1 + 0.02 * _Curriculum.stage),
        after_step=lambda step: _Curriculum.advance(),
    )


class _Shared:
    table: ClassVar[dict[int, float]] = {}


@unregistered("dict of a class", "table")
def class_dict(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        key = len(_Shared.table)
        _Shared.table[key] = 1.0
        return mse(model, batch) * (1 + 0.01 * key)

    return recipe(loss=loss)


@dataclass(slots=True)
class _Slots:
    ema: float = 0.0
    count: int = 0


@unregistered("dataclass with slots", "ema", "count")
def slots(config: Config) -> Recipe:
    state = _Slots()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        state.count += 1
        state.ema = 0.9 * state.ema + 0.1 * value.item()
        return value / (1 + state.ema)

    return recipe(loss=loss)


class _Temperature:
    def __init__(self) -> None:
        self._log = 0.0

    @property
    def value(self) -> float:
        return float(2.0**self._log)

    @value.setter
    def value(self, new: float) -> None:
        self._log = new - 1.0


@unregistered("value behind a property", "_log", "value", "temperature")
def property_setter(config: Config) -> Recipe:
    temperature = _Temperature()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        temperature.value = temperature.value + 0.01
        return mse(model, batch) * temperature.value

    return recipe(loss=loss)


@dataclass
class _State:
    weights: list[float] = field(default_factory=lambda: [1.0, 1.0])


@dataclass
class _Engine:
    state: _State = field(default_factory=_State)


@unregistered("list in an object in an object", "weights")
def nested_objects(config: Config) -> Recipe:
    engine = _Engine()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        parts = (functional.mse_loss(found, y), found.abs().mean())
        engine.state.weights[0] *= 0.99
        engine.state.weights[1] *= 1.01
        return sum((w * p for w, p in zip(engine.state.weights, parts, strict=True)), start=torch.zeros(()))

    return recipe(loss=loss)


class _Pair(NamedTuple):
    mean: torch.Tensor
    count: torch.Tensor


@unregistered("tensors in a named tuple", "mean", "count", "stats")
def named_tuple(config: Config) -> Recipe:
    stats = _Pair(torch.zeros(1), torch.zeros(1, dtype=torch.int64))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        stats.count.add_(1)
        stats.mean.add_((value.detach() - stats.mean) / stats.count)
        return value / stats.mean.mean()

    return recipe(loss=loss)


class _UncertaintyLoss(nn.Module):
    """Learned weights of two losses, which no optimizer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.log_sigma = nn.Parameter(torch.zeros(2))

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        found = model(x)
        parts = torch.stack([functional.mse_loss(found, y), functional.l1_loss(found, y)])
        with torch.no_grad():
            self.log_sigma += 0.01 * (parts.detach() - torch.exp(self.log_sigma))
        return (parts * torch.exp(-self.log_sigma.detach())).sum()


@unregistered("weights of losses in a module that is no part of the model", "log_sigma", "criterion")
def uncertainty_weights(config: Config) -> Recipe:
    criterion = _UncertaintyLoss()
    return recipe(loss=lambda model, batch: criterion(model, batch))


class _RunningNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.mean: torch.Tensor

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.95).add_(0.05 * y.detach().mean())
        return y - self.mean


@unregistered("buffer of a module that normalises targets", "normalise", "mean")
def target_norm(config: Config) -> Recipe:
    normalise = _RunningNorm()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x), normalise(y))

    return recipe(loss=loss)


class _RewardScaler:
    """Running mean and variance by Welford's method."""

    def __init__(self) -> None:
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def __call__(self, reward: torch.Tensor) -> torch.Tensor:
        for value in reward.flatten().tolist():
            self.n += 1
            delta = value - self.mean
            self.mean += delta / self.n
            self.m2 += delta * (value - self.mean)
        return reward / (1e-3 + (self.m2 / max(self.n - 1, 1)) ** 0.5)


@unregistered("running statistics of a reward", "mean", "m2", "scaler")
def reward_scaler(config: Config) -> Recipe:
    scaler = _RewardScaler()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x), scaler(y))

    return recipe(loss=loss)


class _Callbacks:
    def __init__(self, *callbacks: Any) -> None:
        self.callbacks = list(callbacks)

    def __call__(self, step: int) -> None:
        for callback in self.callbacks:
            callback(step)


class _Sharpen:
    def __init__(self, settings: dict[str, float]) -> None:
        self.settings = settings

    def __call__(self, step: int) -> None:
        self.settings["power"] = min(3.0, self.settings["power"] + 0.01)


@unregistered("dict that a callback in a list changes", "power", "settings")
def callback_list(config: Config) -> Recipe:
    settings = {"power": 1.0}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return ((model(x) - y).abs() ** settings["power"]).mean()

    return recipe(loss=loss, after_step=_Callbacks(_Sharpen(settings)))
