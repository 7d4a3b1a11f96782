"""Lost state that acts some steps after the resume: periods, queues that have to fill, warm-ups that end."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.continuity.blind.cases import UNREGISTERED, Axis, Build, case
from benchmarks.continuity.scripts.base import Batch, Config, mse, net, recipe, samples
from segue.recipe import Recipe

_LONG = 64


def late(name: str, *names: str, **fields: Any) -> Callable[[Build], Build]:
    """A case that may act as late as 64 steps after the resume."""
    return case(name, Axis.LATE, *names, **({"window": _LONG} | fields))


def _with_period(period: int) -> Recipe:
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return mse(model, batch) * (2.0 if calls % period == 0 else 1.0)

    return recipe(loss=loss)


@late("counter with a period of 5", "calls")
def period_5(config: Config) -> Recipe:
    return _with_period(5)


@late("counter with a period of 10", "calls")
def period_10(config: Config) -> Recipe:
    return _with_period(10)


@late("counter with a period of 16", "calls")
def period_16(config: Config) -> Recipe:
    return _with_period(16)


@late("counter with a period of 20", "calls")
def period_20(config: Config) -> Recipe:
    return _with_period(20)


@late("counter with a period of 37", "calls")
def period_37(config: Config) -> Recipe:
    return _with_period(37)


@late("counter with a period of 50", "calls")
def period_50(config: Config) -> Recipe:
    return _with_period(50)


@late("average used every 16 steps", "average")
def rare_average(config: Config) -> Recipe:
    state = {"average": 1.0, "steps": 0}

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        state["average"] = 0.9 * state["average"] + 0.1 * value.item()
        return value

    def after_step(step: int) -> None:
        if step % 16 == 0:
            with torch.no_grad():
                for parameter in made.model.parameters():
                    parameter.mul_(1 - 0.001 * state["average"])

    made = recipe(loss=loss, after_step=after_step)
    return made


@late("queue of 32 that is used once it is full", "queue")
def full_queue(config: Config) -> Recipe:
    queue: deque[torch.Tensor] = deque(maxlen=32)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found = model(batch[0])
        value = functional.mse_loss(found, batch[1])
        if len(queue) == 32:
            value = value + 0.1 * (found.mean() - torch.stack(list(queue)).mean()) ** 2
        queue.append(found.detach().mean())
        return value

    return recipe(loss=loss)


@late("warm-up that ends at call 40", "calls")
def warm_up_end(config: Config) -> Recipe:
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        value = mse(model, batch)
        return value if calls < 40 else value + 0.1 * model(batch[0]).square().mean()

    return recipe(loss=loss)


@late("rate that drops at call 50", "updates", components=UNREGISTERED | {"scheduler"})
def late_drop(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    updates = 0

    def after_step(step: int) -> None:
        nonlocal updates
        updates += 1
        if updates == 50:
            optimizer.param_groups[0]["lr"] = 0.002

    return recipe(model, optimizer=optimizer, after_step=after_step)


@late("target network copied every 30 steps", "target")
def rare_target(config: Config) -> Recipe:
    model, target, calls = net(), net(), 0
    target.load_state_dict(model.state_dict())

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls % 30 == 0:
            target.load_state_dict(model.state_dict())
        x, y = batch
        with torch.no_grad():
            wanted = y + 0.2 * target(x.roll(1, 0))
        return functional.mse_loss(model(x), wanted) if calls > 20 else functional.mse_loss(model(x), y)

    return recipe(model, loss)


@late("gradients accumulated over 16 steps", "sums", "count")
def long_accumulation(config: Config) -> Recipe:
    sums: list[torch.Tensor] = []
    count = [0]

    def after_step(step: int) -> None:
        count[0] += 1
        grads = [p.grad.clone() for p in made.model.parameters() if p.grad is not None]
        sums[:] = grads if not sums else [a + b for a, b in zip(sums, grads, strict=True)]
        if count[0] % 16 == 0:
            with torch.no_grad():
                for parameter, grad in zip(made.model.parameters(), sums, strict=True):
                    parameter.sub_(1e-4 * grad)
            sums.clear()

    made = recipe(after_step=after_step)
    return made


@late("teacher used from call 60 on", "teacher")
def late_teacher(config: Config) -> Recipe:
    model = net()
    teacher = copy.deepcopy(model)
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        value = mse(model, batch)
        if calls < 60:
            return value
        with torch.no_grad():
            wanted = teacher(batch[0])
        return value + functional.mse_loss(model(batch[0]), wanted)

    def after_step(step: int) -> None:
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.05)

    return recipe(model, loss, after_step=after_step)


@late(
    "EMA used at an evaluation",
    "ema",
    acts_on="metric",
    first_step=16,
    components=UNREGISTERED | {"evaluate", "metric"},
)
def late_evaluation(config: Config) -> Recipe:
    model = net()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
    x, y = samples()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(functional.mse_loss(ema(x), y))

    def after_step(step: int) -> None:
        ema.update_parameters(model)

    return recipe(model, evaluate=evaluate, evaluate_every=20, after_step=after_step)


@late("generator used every tenth step", "noise")
def rare_generator(config: Config) -> Recipe:
    noise, steps = torch.Generator().manual_seed(4), [0]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        if steps[0] % 10 == 9:
            x = x + 0.3 * torch.randn(x.shape, generator=noise)
        return functional.mse_loss(model(x), y)

    def after_step(step: int) -> None:
        steps[0] = step

    return recipe(loss=loss, after_step=after_step)


@late("patience of 25 bad steps", "bad", "best", components=UNREGISTERED | {"scheduler"})
def long_patience(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    state = {"best": 0.0, "bad": 0}

    def after_step(step: int, metrics: dict[str, float]) -> None:
        state["bad"] += 1
        if state["bad"] >= 25:
            state["bad"] = 0
            optimizer.param_groups[0]["lr"] *= 0.5

    return recipe(model, optimizer=optimizer, after_step=after_step)


@late("list of losses, used once it has 30", "history")
def long_history(config: Config) -> Recipe:
    history: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        value = mse(model, batch)
        history.append(value.item())
        return value if len(history) < 30 else value / (sum(history[-30:]) / 30)

    return recipe(loss=loss)
