"""Values that recipes carry from step to step outside their components, and that affect a later step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.blind.cases import UNREGISTERED, Axis, Build, case
from benchmarks.continuity.scripts.base import Batch, Config, mse, net, recipe
from segue.recipe import Recipe

_LONG = 64
steps_made = 0


def carried(name: str, *names: str, **fields: Any) -> Callable[[Build], Build]:
    """A case whose loss may show as late as 64 steps after the resume."""
    fields = {"window": _LONG, "components": UNREGISTERED | {"scheduler", "optimizer"}} | fields
    return case(name, Axis.CARRIED, *names, **fields)


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@carried("sum of losses for the rate of the next epoch", "total")
def epoch_sum(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    total = 0.0

    def after_step(step: int, metrics: dict[str, float]) -> None:
        nonlocal total
        total += metrics["loss"]
        if step % 14 == 0:
            _set_lr(optimizer, 0.02 / (1 + total))
            total = 0.0

    return recipe(model, optimizer=optimizer, after_step=after_step)


@carried("average that ends a warm-up", "smooth")
def smooth_loss(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    state: dict[str, float] = {"smooth": 1.0}

    def after_step(step: int, metrics: dict[str, float]) -> None:
        state["smooth"] = 0.98 * state["smooth"] + 0.02 * metrics["loss"]
        if step > 40:
            _set_lr(optimizer, 0.01 * state["smooth"])

    return recipe(model, optimizer=optimizer, after_step=after_step)


@carried("best loss and patience in an object", "best", "bad")
def patience(config: Config) -> Recipe:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    class Patience:
        def __init__(self) -> None:
            self.best, self.bad = float("inf"), 0

        def __call__(self, value: float) -> None:
            self.bad = 0 if value < self.best else self.bad + 1
            self.best = min(self.best, value)
            if self.bad >= 18:
                _set_lr(optimizer, 0.002)

    watch = Patience()
    return recipe(model, optimizer=optimizer, after_step=lambda step, metrics: watch(metrics["loss"]))  # noqa: ARG005


@carried("hidden state in the loss", "hidden")
def hidden_state(config: Config) -> Recipe:
    cell = nn.GRUCell(8, 8)
    hidden = torch.zeros(16, 8)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal hidden
        hidden = cell(batch[0], hidden).detach()
        return mse(model, batch) + 0.01 * model(batch[0] + hidden).square().mean()  # type: ignore[no-any-return]

    return recipe(loss=loss, extra={"cell": cell})


@carried("module's count with a milestone", "steps_made")
def module_count(config: Config) -> Recipe:
    global steps_made  # noqa: PLW0603
    steps_made = 0
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def after_step(step: int) -> None:
        global steps_made  # noqa: PLW0603
        steps_made += 1
        if steps_made == 45:
            _set_lr(optimizer, 0.002)

    return recipe(model, optimizer=optimizer, after_step=after_step)


@carried("counts by class with a late effect", "counts")
def class_counts(config: Config) -> Recipe:
    counts: Counter[bool] = Counter()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        counts.update((batch[1] > 0).flatten().tolist())
        value = mse(model, batch)
        return value if sum(counts.values()) < 700 else value * (counts[True] / counts[False])

    return recipe(loss=loss)


@carried("calls counted on the model", "calls")
def model_calls(config: Config) -> Recipe:
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls = net(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            found: torch.Tensor = self.body(x)
            return found if self.calls < 46 else found * 0.9

    return recipe(Warm())


@carried("phase by name", "phase")
def named_phase(config: Config) -> Recipe:
    phase = "first"

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal phase
        value = mse(model, batch)
        if phase == "first" and value.item() > 1.5:
            phase = "second"
        elif phase == "second" and value.item() < 0.02:
            phase = "third"
        return value * {"first": 0.5, "second": 1.0, "third": 0.9}[phase]

    return recipe(loss=loss)


@carried("attribute of the loss function", "seen")
def function_attribute(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss.seen += len(batch[0])  # type: ignore[attr-defined]
        return mse(model, batch) * (1.0 if loss.seen < 720 else 0.5)  # type: ignore[attr-defined,no-any-return]

    loss.seen = 0  # type: ignore[attr-defined]
    return recipe(loss=loss)


@carried("two numbers in a tuple", "pair")
def pair_of_numbers(config: Config) -> Recipe:
    pair = (0.0, 1.0)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal pair
        value = mse(model, batch)
        pair = (0.99 * pair[0] + value.item(), 0.99 * pair[1] + 1.0)
        return value if pair[1] < 30 else value / (1 + pair[0] / pair[1])

    return recipe(loss=loss)
