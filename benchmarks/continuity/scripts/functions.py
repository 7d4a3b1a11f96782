"""State in functions: closures, default arguments, attributes of functions, module globals."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.scripts.base import Batch, Config, mse, net, recipe, unregistered
from segue.recipe import Recipe

steps_done = 0
running_scale = torch.ones(1)
totals: dict[str, float] = {"loss": 0.0}
previous_loss: float | None = None
loss_history: list[float] = []


@unregistered("counter in a closure", "calls")
def closure_counter(config: Config) -> Recipe:
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return mse(model, batch) * (1 + 0.02 * calls)

    return recipe(loss=loss)


@unregistered("tensor that a closure replaces", "average")
def closure_tensor(config: Config) -> Recipe:
    average = torch.zeros(())

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal average
        value = mse(model, batch)
        average = 0.9 * average + 0.1 * value.detach()
        return value / (average + 1.0)

    return recipe(loss=loss)


@unregistered("tensor that a closure changes in place", "baseline")
def closure_tensor_in_place(config: Config) -> Recipe:
    baseline = torch.zeros(1)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        value = ((model(x) - y - 0.1 * baseline) ** 2).mean()
        baseline.lerp_(y.mean().reshape(1), 0.1)
        return value

    return recipe(loss=loss)


@unregistered("closure two levels down", "seen")
def nested_closure(config: Config) -> Recipe:
    def make_weight() -> Any:
        seen = 0

        def weight() -> float:
            nonlocal seen
            seen += 1
            return 1.0 / (1 + 0.05 * seen)

        return weight

    weight = make_weight()
    return recipe(loss=lambda model, batch: mse(model, batch) * weight())


@unregistered("state in a closure of after_step", "boost")
def closure_of_after_step(config: Config) -> Recipe:
    boost = [1.0]

    def after_step(step: int) -> None:
        boost[0] *= 1.01

    return recipe(loss=lambda model, batch: mse(model, batch) * boost[0], after_step=after_step)


@unregistered("list as default argument", "history")
def default_argument(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch, history: list[float] = []) -> torch.Tensor:  # noqa: B006
        value = mse(model, batch)
        history.append(value.item())
        return value / (sum(history) / len(history))

    return recipe(loss=loss)


@unregistered("attribute of a function", "count")
def function_attribute(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss.count += 1  # type: ignore[attr-defined]
        return mse(model, batch) * min(1.0, loss.count / 100)  # type: ignore[attr-defined]

    loss.count = 0  # type: ignore[attr-defined]
    return recipe(loss=loss)


@unregistered("module's counter, rebound by global", "steps_done")
def module_counter(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        global steps_done
        steps_done += 1
        return mse(model, batch) * (1 + steps_done / 100)

    return recipe(loss=loss)


@unregistered("module's tensor, changed in place", "running_scale")
def module_tensor(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        running_scale.mul_(0.95).add_(0.05 * value.detach())
        return value / running_scale.mean()

    return recipe(loss=loss)


@unregistered("module's dict of sums", "totals")
def module_dict(config: Config) -> Recipe:
    def after_step(step: int) -> None:
        totals["steps"] = totals.get("steps", 0) + 1

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) * (1.0 + 0.01 * totals.get("steps", 0))

    return recipe(loss=loss, after_step=after_step)


@unregistered("module's last loss", "previous_loss")
def module_optional(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        global previous_loss
        value = mse(model, batch)
        penalty = 0.0 if previous_loss is None else abs(previous_loss - 1.0)
        previous_loss = value.item()
        return value * (1 + penalty)

    return recipe(loss=loss)


def _remember(value: float) -> float:
    loss_history.append(value)
    return sum(loss_history[-50:]) / len(loss_history[-50:])


@unregistered("module's history, written by a helper", "loss_history")
def helper_history(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        return value / _remember(value.item())

    return recipe(loss=loss)


def _scaled(state: dict[str, float], model: nn.Module, batch: Batch) -> torch.Tensor:
    state["weight"] = state["weight"] * 0.98
    return mse(model, batch) * (0.5 + state["weight"])


@unregistered("dict bound by functools.partial", "weight", "state")
def partial_dict(config: Config) -> Recipe:
    return recipe(loss=functools.partial(_scaled, {"weight": 1.0}))


@unregistered("object held by a cached factory", "Schedule", "schedule", "value")
def cached_factory(config: Config) -> Recipe:
    class Schedule:
        def __init__(self) -> None:
            self.value = 1.0

    @functools.lru_cache(maxsize=1)
    def schedule() -> Schedule:
        return Schedule()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        schedule().value *= 0.99
        return mse(model, batch) * schedule().value

    return recipe(loss=loss)


@unregistered("itertools.count", "ticks")
def endless_count(config: Config) -> Recipe:
    ticks = itertools.count(1)
    return recipe(loss=lambda model, batch: mse(model, batch) * (1 + next(ticks) / 50))


@unregistered("itertools.cycle", "weights")
def endless_cycle(config: Config) -> Recipe:
    weights = itertools.cycle([1.0, 0.5, 2.0, 0.25, 1.5, 0.75, 3.0])
    return recipe(loss=lambda model, batch: mse(model, batch) * next(weights))


@unregistered("iterator over a list", "plan")
def list_iterator(config: Config) -> Recipe:
    plan = iter([1.0 + 0.01 * n for n in range(10_000)])
    return recipe(loss=lambda model, batch: mse(model, batch) * next(plan))


@unregistered("generator function", "weights", "annealed")
def generator_object(config: Config) -> Recipe:
    def annealed() -> Any:
        weight = 1.0
        while True:
            yield weight
            weight *= 0.99

    weights = annealed()
    return recipe(loss=lambda model, batch: mse(model, batch) * next(weights))


@unregistered("decorator that counts", "seen", "calls", "counts")
def counting_decorator(config: Config) -> Recipe:
    def warmed_up(function: Any) -> Any:
        seen = {"calls": 0}

        @functools.wraps(function)
        def wrapped(model: nn.Module, batch: Batch) -> torch.Tensor:
            seen["calls"] += 1
            value: torch.Tensor = function(model, batch) * min(1.0, seen["calls"] / 60)
            return value

        return wrapped

    return recipe(loss=warmed_up(mse))


@unregistered("second loader's iterator", "unlabelled", "extra_batches")
def second_loader(config: Config) -> Recipe:
    unlabelled = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    extra_batches = iter(unlabelled.repeat(50, 1).split(7))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return mse(model, batch) + 0.1 * model(next(extra_batches)).square().mean()

    return recipe(net(), loss=loss)
