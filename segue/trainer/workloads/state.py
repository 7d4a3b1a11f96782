"""The training state of a recipe: named components that are captured and restored in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from segue.checkpoints.format.dtensor import is_sharded, local_tensor
from segue.checkpoints.format.names import of_rank
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import decode_tree
from segue.continuity.recipe_diff import NOT_STATE
from segue.data.streams import GLOBAL_STREAMS
from segue.errors import RecipeError
from segue.recipe import EarlyStop, Recipe
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import (
    Component,
    CudaRng,
    ModelModes,
    ModelState,
    OptimizerState,
    Progress,
    StatefulComponent,
    UnsavedBuffers,
)
from segue.trainer.workloads.steps.own_step import held_by_optimizers
from segue.trainer.workloads.values import component_of_value

PROGRESS, EARLY_STOP = "progress", "early_stop"
RNG_PREFIX = "rng."
BUFFERS = ": buffers"
"""Suffix for the name of a model. A name with this suffix stands for the model's buffers, without the parameters."""


def rng_components(ranks: Ranks, model: nn.Module, *, device: torch.device | None = None) -> dict[str, Component]:
    """All global random streams that training uses in this process. The name of each stream contains the rank.

    `device` is the device that computes. Between steps, an offloaded model has no parameters on this device.
    """
    streams: dict[str, Component] = {**GLOBAL_STREAMS}
    # Only accelerators that hold the model count. The next machine may have other accelerators, and no code drew from
    # the idle accelerators.
    used = {p.device for p in model.parameters() if p.is_cuda}
    used |= {torch.device("cuda", device.index or 0)} if device is not None and device.type == "cuda" else set()
    devices = sorted(used, key=lambda device: device.index or 0)
    if devices:
        streams["cuda"] = CudaRng(devices)
    return {of_rank(f"{RNG_PREFIX}{name}", ranks.rank): stream for name, stream in streams.items()}


def components_of(
    recipe: Recipe, progress: Progress, *, name: str, ranks: Ranks | None = None, device: torch.device | None = None
) -> dict[str, Component]:
    """Return all components of a recipe in the order of their restore, with the random streams last.

    Raises:
        RecipeError: the optimizer has tensors that are not parameters of the model.
        UnsupportedStateError: a value in `extra` contains an object that is not data.
    """
    _check_binding(recipe, name=name)
    model = bare(recipe.model)
    components: dict[str, Component] = {
        "model": ModelState(model),
        "modes": ModelModes(model),
    }
    components |= {name: OptimizerState(optimizer) for name, optimizer in recipe.optimizers.items()}
    buffers = UnsavedBuffers(model)
    if buffers.is_needed():
        components["buffers"] = buffers
    components |= {name: StatefulComponent(scheduler) for name, scheduler in recipe.schedulers.items()}
    if recipe.scaler is not None:
        components["scaler"] = StatefulComponent(recipe.scaler)
    if recipe.early_stop is not None:
        components[EARLY_STOP] = Stopper(recipe.early_stop)
    for key, target in recipe.extra.items():
        # This optimizer is handled like the recipe's own optimizer. Before the first step of an optimizer, no live
        # state shows how to distribute the stored state.
        value = component_of_value(target, path=f"extra.{key}")
        if value is not None:
            components[f"extra.{key}"] = value
        elif isinstance(target, torch.optim.Optimizer):
            components[f"extra.{key}"] = OptimizerState(target)
        else:
            is_spread = any(map(is_sharded, model.parameters()))
            components[f"extra.{key}"] = StatefulComponent(target, is_spread=is_spread)
    return components | {PROGRESS: progress} | rng_components(ranks or Ranks(), model, device=device)


def same_on_every_rank(recipe: Recipe) -> Callable[[str], bool]:
    """Return a predicate that tells if all ranks hold equal values of a state tensor. All ranks hold equal values of
    the tensors that the optimizer changes.

    The buffers of a rank depend on the rank's own samples. For buffers, and for all other objects of a recipe, the
    values of rank 0 are saved.
    """
    same = {f"model.state.{name}" for name, _ in bare(recipe.model).named_parameters()}
    return lambda name: name in same or name.startswith("optimizer.")


@contextmanager
def unchanged(components: Mapping[str, Component]) -> Iterator[None]:
    """A `with` block of the user's code. At the end of the block, the random streams and the modes of modules are set
    back."""
    guarded = {name: c for name, c in components.items() if name == "modes" or name.startswith(RNG_PREFIX)}
    before = {name: component.capture() for name, component in guarded.items()}
    try:
        yield
    finally:
        for name, component in guarded.items():
            component.restore(before[name])


def marked_parts(components: Mapping[str, Component]) -> dict[str, Any]:
    """Return the state trees whose marks are compared after a replay. A model's parameters and buffers are separate
    parts.

    The result does not contain the position, because the batches show the position. The result also leaves out
    components that are never restored.
    """
    found: dict[str, Any] = {}
    for name, component in components.items():
        if name in NOT_STATE or name in (PROGRESS, EARLY_STOP):
            continue
        tree = component.capture()
        if isinstance(component, ModelState):
            state, trained = tree["state"], component.parameter_names()
            found[name] = {key: value for key, value in state.items() if key in trained}
            found[f"{name}{BUFFERS}"] = {key: value for key, value in state.items() if key not in trained}
        else:
            found[name] = tree
    return found


def capture(components: Mapping[str, Component]) -> dict[str, Any]:
    """Return the state trees of all components. The trees contain the live tensors."""
    return {name: component.capture() for name, component in components.items()}


class _Copies(Mapping[str, torch.Tensor]):
    """The tensors of a snapshot. Each tensor is copied when it is read.

    An optimizer keeps the loaded tensors. If the loaded tensors were views, the whole shard would stay in memory.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._tensors[name]
        # If only a part of a tensor was read, each slice is copied when it is put in its place.
        return found if found.is_meta else found.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def restore_all(components: Mapping[str, Component], snapshot: Snapshot) -> None:
    """Restore live objects from a snapshot in the order of the components, with the random streams last."""
    for name, component in components.items():
        if name in snapshot.skeletons:
            component.restore(decode_tree(snapshot.skeletons[name], _Copies(snapshot.tensors)))


def changed_by_optimizer(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """Memory addresses of the tensors that only the optimizer's step changes."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # Some optimizers keep plain values next to the slots of each parameter.
    slots = (slot for slot in optimizer.state.values() if isinstance(slot, Mapping))
    state: list[Any] = [value for slot in slots for value in slot.values()]
    tensors = [local_tensor(tensor) for tensor in (*parameters, *state) if isinstance(tensor, torch.Tensor)]
    return frozenset(tensor.data_ptr() for tensor in tensors if tensor.numel())


def _check_binding(recipe: Recipe, *, name: str) -> None:
    live = {id(parameter) for parameter in bare(recipe.model).parameters()}
    held = held_by_optimizers(recipe)
    foreign = sum(id(parameter) not in live for parameter in held)
    if foreign:
        why = f"{foreign} of the optimizer's {len(held)} tensors are not parameters of the model."
        raise RecipeError(recipe=name, why=why, fix="build the optimizer from model.parameters().")


class Stopper:
    """A counter of the evaluations without a better metric, over all attempts of a run."""

    def __init__(self, rule: EarlyStop) -> None:
        self._rule = rule
        self._best: float | None = None
        self._worse = 0

    def judge(self, metric: float) -> str | None:
        """Count one evaluation. If the run should end now, return a reason."""
        rule = self._rule
        sign = 1.0 if rule.mode == "min" else -1.0
        if self._best is None or sign * metric < sign * self._best - rule.min_delta:
            self._best, self._worse = metric, 0
            return None
        self._worse += 1
        if self._worse < rule.patience:
            return None
        return f"the metric was no better than {self._best:.6g} in the last {self._worse} evaluations"

    def capture(self) -> Any:
        return {"best": self._best, "worse": self._worse}

    def restore(self, tree: Any) -> None:
        self._best, self._worse = tree["best"], int(tree["worse"])
