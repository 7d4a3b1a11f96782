"""Scripts that change state after they were resumed: after the first batch, during the replay, or before the commit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.continuity.blind.cases import ANY, Axis, Build, Moment, case
from benchmarks.continuity.scripts.base import Config, net, recipe
from segue.recipe import Recipe

Change = Callable[[nn.Module, torch.optim.Optimizer], object]


def _says_resumed(moment: Moment) -> None:
    if moment.attempt:
        os.environ["RESUMED"] = "1"


def moment(name: str, *, acts_on: str = "loss", first_step: int = 1) -> Callable[[Build], Build]:
    """A case in which a resumed process changes state at a certain step."""
    fields: dict[str, Any] = {"components": frozenset({ANY}), "world": _says_resumed, "window": 64}
    return case(name, Axis.LATE, acts_on=acts_on, first_step=first_step, **fields)


def _at(done: int, change: Change) -> Recipe:
    """A recipe that makes the change once, after this number of steps since a resume."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = 0

    def after_step(step: int) -> None:
        nonlocal steps
        steps += 1
        if steps == done and os.environ.get("RESUMED"):
            change(model, optimizer)

    return recipe(model, optimizer=optimizer, after_step=after_step)


def _clear_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for slot in optimizer.state.values():
        slot["exp_avg"].zero_()


def _scale_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)


def _reset_norm(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()


def _halve_rate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def _seed_again(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(0)


def _draw(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    random.random()
    np.random.random()


def _freeze(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    next(model.parameters()).requires_grad_(False)


def _change_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


@moment("moments cleared after the first batch")
def moments_after_first(config: Config) -> Recipe:
    return _at(1, _clear_moments)


@moment("weights scaled after the first batch")
def weights_after_first(config: Config) -> Recipe:
    return _at(1, _scale_weights)


@moment("running statistics reset after the first batch", acts_on="state")
def norm_after_first(config: Config) -> Recipe:
    return _at(1, _reset_norm)


@moment("learning rate halved after the first batch")
def rate_after_first(config: Config) -> Recipe:
    return _at(1, _halve_rate)


@moment("streams seeded again after the first batch")
def seed_after_first(config: Config) -> Recipe:
    return _at(1, _seed_again)


@moment("streams drawn from while replaying", acts_on="state", first_step=4)
def draw_while_replaying(config: Config) -> Recipe:
    return _at(4, _draw)


@moment("a layer frozen while replaying")
def freeze_while_replaying(config: Config) -> Recipe:
    return _at(3, _freeze)


@moment("weight decay changed while replaying")
def decay_while_replaying(config: Config) -> Recipe:
    return _at(5, _change_decay)


@moment("running statistics reset while replaying", acts_on="state", first_step=6)
def norm_while_replaying(config: Config) -> Recipe:
    return _at(6, _reset_norm)


@moment("moments cleared in the last replayed step")
def moments_in_last(config: Config) -> Recipe:
    return _at(8, _clear_moments)


@moment("learning rate halved between replay and commit")
def rate_before_commit(config: Config) -> Recipe:
    return _at(10, _halve_rate)


@moment("weights scaled between replay and commit")
def weights_before_commit(config: Config) -> Recipe:
    return _at(9, _scale_weights)


@moment("scheduler built again when resumed")
def scheduler_when_resumed(config: Config) -> Recipe:
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    steps = 0

    def after_step(step: int) -> None:
        nonlocal steps
        steps += 1
        if os.environ.get("RESUMED") and steps == 2:
            optimizer.param_groups[0]["lr"] = 0.02 * min(1.0, steps / 100)

    return recipe(model, optimizer=optimizer, after_step=after_step)
