"""Kinds of faulty resumes: the optimizer's state, groups and parameters, and the schedule."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.faults import (
    LATE,
    Fault,
    Kind,
    Live,
    TreeEdit,
    each_tensor,
    flip_bit,
    forgotten,
    largest,
    put_nan,
    stale,
    through_bf16,
    without,
)
from benchmarks.continuity.recipes import equal_pair

_OPTIMIZER = frozenset({"optimizer"})


def _slots(change: Callable[[dict[str, Any]], None], *, only_first: bool = False) -> TreeEdit:
    def edit(tree: Any, live: Live) -> Any:
        for slot in list(tree["state"].values())[: 1 if only_first else None]:
            change(slot)
        return tree

    return edit


def _zero(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(slot: dict[str, Any]) -> None:
        for name in names:
            if name in slot:
                slot[name] = torch.zeros_like(slot[name])

    return change


def _swapped_slots(tree: Any, live: Live) -> Any:
    one, other = equal_pair([p for group in live.recipe.optimizer.param_groups for p in group["params"]])
    tree["state"][one], tree["state"][other] = tree["state"][other], tree["state"][one]
    return tree


def _slot_damage(change: Callable[[torch.Tensor, random.Random], None]) -> TreeEdit:
    def edit(tree: Any, live: Live) -> Any:
        slots = {f"{n}.{k}": v for n, slot in tree["state"].items() for k, v in slot.items() if torch.is_tensor(v)}
        change(largest(slots), live.chance)
        return tree

    return edit


def _group(**values: Any) -> TreeEdit:
    def edit(tree: Any, live: Live) -> Any:
        for group in tree["param_groups"]:
            group.update({name: value for name, value in values.items() if name in group})
        return tree

    return edit


def _rebind(live: Live) -> None:
    """The optimizer continues with copies of the parameters. The model's parameters never change again."""
    optimizer = live.recipe.optimizer
    for group in optimizer.param_groups:
        for n, parameter in enumerate(group["params"]):
            twin = nn.Parameter(parameter.detach().clone())
            group["params"][n] = twin
            if parameter in optimizer.state:
                optimizer.state[twin] = optimizer.state.pop(parameter)


def _copy_parameters(recipe: Any) -> None:
    twin = copy.deepcopy(recipe.model)
    kind, group = type(recipe.optimizer), recipe.optimizer.param_groups[0]
    recipe.optimizer = kind(twin.parameters(), lr=group["lr"])
    recipe.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(recipe.optimizer, T_max=1000)


def _scale_lr(live: Live) -> None:
    for group in live.recipe.optimizer.param_groups:
        group["lr"] *= 0.5


OPTIMIZER_KINDS = (
    Kind("optimizer dropped", "optimizer", Fault(trees={"optimizer": forgotten}), _OPTIMIZER),
    Kind("optimizer of 1 step ago", "optimizer", Fault(trees={"optimizer": stale("optimizer", steps=1)}), _OPTIMIZER),
    Kind(
        "optimizer of 10 steps ago", "optimizer", Fault(trees={"optimizer": stale("optimizer", steps=10)}), _OPTIMIZER
    ),
    Kind(
        "first moments lost",
        "optimizer",
        Fault(trees={"optimizer": _slots(_zero("exp_avg", "momentum_buffer"))}),
        _OPTIMIZER,
    ),
    Kind(
        "second moments lost",
        "optimizer",
        Fault(trees={"optimizer": _slots(_zero("exp_avg_sq"))}),
        _OPTIMIZER,
        needs=frozenset({"adamw"}),
    ),
    Kind(
        "one tensor's slots lost",
        "optimizer",
        Fault(trees={"optimizer": _slots(_zero("exp_avg", "exp_avg_sq", "momentum_buffer"), only_first=True)}),
        _OPTIMIZER,
    ),
    Kind(
        "step counters reset",
        "optimizer",
        Fault(trees={"optimizer": _slots(_zero("step"))}),
        _OPTIMIZER,
        needs=frozenset({"adamw"}),
    ),
    Kind("slots of two equal tensors swapped", "optimizer", Fault(trees={"optimizer": _swapped_slots}), _OPTIMIZER),
    Kind(
        "slots through bf16",
        "optimizer",
        Fault(trees={"optimizer": lambda tree, _: {**tree, "state": each_tensor(tree["state"], through_bf16)}}),
        _OPTIMIZER,
    ),
    Kind("one bit of a slot flipped", "optimizer", Fault(trees={"optimizer": _slot_damage(flip_bit)}), _OPTIMIZER),
    Kind("NaN in a slot", "optimizer", Fault(trees={"optimizer": _slot_damage(put_nan)}), _OPTIMIZER),
    Kind(
        "optimizer over copies of the parameters",
        "binding",
        Fault(built=_copy_parameters),
        frozenset({"RecipeError", "setup.binding", "setup.hyperparameters"}),
    ),
    Kind(
        "optimizer rebound after the restore",
        "binding",
        Fault(restored=_rebind),
        LATE | {"setup.binding"},
    ),
    Kind(
        "optimizer's state cleared after the check",
        "optimizer",
        Fault(checked=lambda live: live.recipe.optimizer.state.clear()),
        LATE,
    ),
    Kind("weight decay drifts", "hyper-parameters", Fault(trees={"optimizer": _group(weight_decay=0.1)}), _OPTIMIZER),
    Kind(
        "betas or momentum drift",
        "hyper-parameters",
        Fault(trees={"optimizer": _group(betas=(0.85, 0.999), momentum=0.85)}),
        _OPTIMIZER,
    ),
    Kind(
        "eps drifts",
        "hyper-parameters",
        Fault(trees={"optimizer": _group(eps=1e-6)}),
        _OPTIMIZER,
        needs=frozenset({"adamw"}),
    ),
    Kind(
        "Nesterov's momentum",
        "hyper-parameters",
        Fault(trees={"optimizer": _group(nesterov=True)}),
        _OPTIMIZER,
        needs=frozenset({"sgd"}),
    ),
)


def _first_lr(tree: Any, live: Live) -> Any:
    for group in tree["param_groups"]:
        group["lr"] = group.get("initial_lr", group["lr"])
    return tree


SCHEDULE_KINDS = (
    Kind(
        "scheduler one step ahead",
        "schedule",
        Fault(restored=lambda live: live.recipe.scheduler.step()),
        frozenset({"scheduler", "optimizer"}),
    ),
    Kind("scheduler restarted", "schedule", Fault(trees={"scheduler": forgotten}), frozenset({"scheduler"})),
    Kind(
        "scheduler of 10 steps ago",
        "schedule",
        Fault(trees={"scheduler": stale("scheduler", steps=10)}),
        frozenset({"scheduler"}),
    ),
    Kind(
        "learning rate lost",
        "schedule",
        Fault(trees={"optimizer": _first_lr, "scheduler": forgotten}),
        frozenset({"scheduler", "optimizer"}),
    ),
    Kind(
        "learning rate halved after the check",
        "schedule",
        Fault(checked=_scale_lr),
        frozenset({"scheduler", "optimizer"}),
    ),
    Kind("no scheduler in the resumed recipe", "schedule", Fault(built=without("scheduler")), frozenset({"scheduler"})),
)
