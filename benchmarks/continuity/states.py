"""Kinds of faulty resumes: weights, buffers, modes, random streams, and a recipe's state outside its model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.continuity.faults import (
    LATE,
    NAMED_REPLAY,
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
    void,
    without,
)
from benchmarks.continuity.recipes import equal_pair
from segue.data.streams import seed_all


def _draw_from(stream: str) -> Callable[[Live], None]:
    draws: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.rand(1),
        "python": random.random,
        "numpy": np.random.random,
    }
    return lambda _: void(draws[stream]())


def _reseed(live: Live) -> None:
    seed_all(live.seed)


STREAM_KINDS = (
    *(
        Kind(
            f"{name} stream not restored",
            "randomness",
            Fault(trees={f"rng.{name}": forgotten}),
            frozenset({f"rng.{name}"}),
        )
        for name in ("torch", "python", "numpy")
    ),
    *(
        Kind(
            f"{name} stream one draw ahead", "randomness", Fault(restored=_draw_from(name)), frozenset({f"rng.{name}"})
        )
        for name in ("torch", "python", "numpy")
    ),
    *(
        Kind(
            f"{name} stream drawn from after the check",
            "randomness",
            Fault(checked=_draw_from(name)),
            frozenset({f"rng.{name}"}),
        )
        for name in ("torch", "python", "numpy")
    ),
    Kind("all streams seeded after the check", "randomness", Fault(checked=_reseed), frozenset({"rng.torch"})),
)


def _in_state(change: Callable[[dict[str, torch.Tensor], Live], None]) -> TreeEdit:
    def edit(tree: Any, live: Live) -> Any:
        state = dict(tree["state"])
        change(state, live)
        return {**tree, "state": state}

    return edit


def _one_layer_reset(state: dict[str, torch.Tensor], live: Live) -> None:
    name = _matrices(state)[-1]
    fresh = live.recipe.model.state_dict()[name]  # As `build` made it.
    state[name] = fresh.clone()


def _two_layers_swapped(state: dict[str, torch.Tensor], live: Live) -> None:
    names = [name for name, _ in live.recipe.model.named_parameters()]
    one, other = equal_pair(list(live.recipe.model.parameters()))
    state[names[one]], state[names[other]] = state[names[other]], state[names[one]]


def _matrices(state: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in state.items() if tensor.ndim >= 2 and tensor.is_floating_point()]


def _one_bias_lost(state: dict[str, torch.Tensor], live: Live) -> None:
    name = [name for name in state if name.endswith("bias")][-1]
    state[name] = torch.zeros_like(state[name])


def _nudge(live: Live) -> None:
    with torch.no_grad():
        next(p for p in live.recipe.model.parameters() if p.requires_grad and p.ndim >= 2).mul_(1.01)


def _buffers(ending: str, value: float) -> TreeEdit:
    def change(state: dict[str, torch.Tensor], live: Live) -> None:
        state.update({n: torch.full_like(old, value) for n, old in state.items() if n.endswith(ending)})

    return _in_state(change)


def _model(name: str, edit: TreeEdit, **more: Any) -> Kind:
    return Kind(name, "weights", Fault(trees={"model": edit}), frozenset({"model"}), **more)


WEIGHT_KINDS = (
    _model("weights of 1 step ago", stale("model", steps=1)),
    _model("weights of 10 steps ago", stale("model", steps=10)),
    _model("weights not restored", forgotten),
    _model("one bit of a weight flipped", _in_state(lambda state, live: flip_bit(largest(state), live.chance))),
    _model("weights through bf16", lambda tree, _: each_tensor(tree, through_bf16)),
    _model("one layer reset", _in_state(_one_layer_reset)),
    _model("two equal layers swapped", _in_state(_two_layers_swapped)),
    _model("one bias lost", _in_state(_one_bias_lost)),
    _model("NaN in a weight", _in_state(lambda state, live: put_nan(largest(state), live.chance))),
    Kind("one layer scaled after the check", "weights", Fault(checked=_nudge), LATE | {"model"}),
    *(
        replace(
            _model(f"batch norm: {what} lost", _buffers(ending, value), needs=frozenset({"batchnorm"})),
            family="buffers",
        )
        for what, ending, value in (
            ("running mean", "running_mean", 0.0),
            ("running variance", "running_var", 1.0),
            ("batch count", "num_batches_tracked", 0.0),
        )
    ),
)


def _freeze(live: Live) -> None:
    next(live.recipe.model.parameters()).requires_grad_(False)


def _unfreeze(live: Live) -> None:
    for parameter in live.recipe.model.parameters():
        parameter.requires_grad_(True)


def _one_in_eval_mode(live: Live) -> None:
    next(module for module in live.recipe.model.modules() if isinstance(module, nn.Dropout)).eval()


_MODES = frozenset({"modes"})
MODE_KINDS = (
    Kind("eval mode left on", "modes", Fault(restored=lambda live: void(live.recipe.model.eval())), _MODES),
    Kind(
        "eval mode set after the check",
        "modes",
        Fault(checked=lambda live: void(live.recipe.model.eval())),
        NAMED_REPLAY | {"modes"},
    ),
    Kind("one submodule in eval mode", "modes", Fault(restored=_one_in_eval_mode), _MODES),
    Kind("a layer frozen", "modes", Fault(restored=_freeze), _MODES),
    Kind("a frozen layer trained", "modes", Fault(restored=_unfreeze), _MODES, config={"frozen": True}),
    Kind("a layer frozen after the check", "modes", Fault(checked=_freeze), LATE | _MODES),
)


def _without_average(recipe: Any) -> None:
    recipe.extra = {name: target for name, target in recipe.extra.items() if name != "average"}


def _scaler(**values: Any) -> TreeEdit:
    return lambda tree, _: {**tree, **values}


_AVERAGE, _SCALER = frozenset({"extra.average"}), frozenset({"scaler"})
EXTRA_KINDS = (
    Kind("average forgotten", "extra", Fault(trees={"extra.average": forgotten}), _AVERAGE),
    Kind(
        "average of 10 steps ago", "extra", Fault(trees={"extra.average": stale("extra.average", steps=10)}), _AVERAGE
    ),
    Kind("no average in the resumed recipe", "extra", Fault(built=_without_average), _AVERAGE),
    Kind(
        "sums of gradients lost",
        "extra",
        Fault(trees={"extra.accumulator": forgotten}),
        frozenset({"extra.accumulator"}),
    ),
    Kind("loss scale reset", "scaler", Fault(trees={"scaler": _scaler(scale=65536.0)}), _SCALER, needs=_SCALER),
    Kind("growth tracker reset", "scaler", Fault(trees={"scaler": _scaler(_growth_tracker=0)}), _SCALER, needs=_SCALER),
    Kind("no scaler in the resumed recipe", "scaler", Fault(built=without("scaler")), _SCALER, needs=_SCALER),
)
