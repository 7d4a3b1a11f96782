"""The setup of a run. Each checkpoint records the setup. A resume compares the setup, but never restores the setup.

The setup is recorded once, after the build of the recipe, because everything that training changes is state. Only the
list of the optimizer's tensors and the next samples are read again at each save and each resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.parameter import is_lazy

from segue.continuity.code_hash import code_hashes
from segue.continuity.data_hash import data_hashes
from segue.continuity.live_tree import parts_held
from segue.continuity.object_walk import Inspection, is_telling, settings_of
from segue.continuity.recipe_diff import BINDING, CODE, CONFIG, DATA, HYPERPARAMETERS, MODEL, NEXT_BATCHES, RESTORED
from segue.data.loader import Feed
from segue.data.order import SampleOrder
from segue.data.sampled import has_own_sampler
from segue.recipe import Recipe
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.values import RestoredValues
from segue.user_objects import has, settings_shown
from segue.user_objects.variables import Variables

_BATCHES_AHEAD, _GLANCED = 4, 64
_OF_KERNELS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings of an optimizer's kernels. These settings are not hyperparameters, because many recipes choose them by the
device."""


class Looked:
    """A component that a resume compares, but never restores."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look

    def capture(self) -> Any:
        return self._look()

    def restore(self, tree: Any) -> None:
        return


def setup_components(
    recipe: Recipe,
    feed: Feed,
    progress: Progress,
    *,
    build: Callable[..., Any],
    config: Mapping[str, Any],
    state: Mapping[str, Component],
) -> dict[str, Component]:
    """Return the setup of a newly built recipe. The keys are the constants in
    `segue.continuity.recipe_diff`.

    `state` has the components that a resume restores.
    """
    found = _inspected(recipe)
    code = [leaf.value for leaf in found.code]
    kinds = {leaf.path: f"{leaf.value.__module__}.{leaf.value.__qualname__}" for leaf in found.code}
    # The classes are in the model's order, each class once. A set would have an order that depends on addresses, which
    # differ between processes.
    classes = dict.fromkeys(type(module) for module in bare(recipe.model).modules())
    data = data_hashes(leaf for leaf in found.arrays if leaf.path.startswith(("data.", "loss", "step")))
    fixed = {
        MODEL: _described(bare(recipe.model)),
        HYPERPARAMETERS: {path: _plain(value) for path, value in found.plain.items() if is_telling(path, value)}
        | {name: value for each in recipe.optimizers.items() for name, value in settings_of_optimizer(*each).items()}
        | _of_order(feed.order),
        CODE: kinds | code_hashes([build, *code, *classes], home=str(build.__module__).partition(".")[0]),
        CONFIG: {name: json.dumps(value, sort_keys=True) for name, value in config.items()},
        DATA: {"samples": feed.order.count} | data,
    }
    looked: dict[str, Callable[[], Any]] = {name: lambda tree=tree: tree for name, tree in fixed.items()}  # type: ignore[misc]
    looked[BINDING] = lambda: binding(named_parameters(bare(recipe.model)), recipe.optimizers)
    looked[NEXT_BATCHES] = lambda: next_batches(feed.order, progress.samples_seen)
    setup: dict[str, Component] = {name: Looked(look) for name, look in looked.items()}
    return setup | {RESTORED: RestoredValues(state, paths=sorted(set(_restored(found, recipe.extra))))}


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the module's live parameters. If a parameter has several names, it is listed under each name."""
    yield from module.named_parameters(remove_duplicate=False)


def binding(
    named: Iterable[tuple[str, nn.Parameter]], optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return the parameter names in each optimizer group, and the names that share one tensor."""
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in named:
        first = names.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    held = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    groups = [[names.get(id(p), "not a parameter of the model") for p in group["params"]] for group in held]
    return {"groups": groups, "tied": tied}


def next_batches(order: SampleOrder, samples_seen: int) -> dict[str, Any]:
    """Return the lengths of the next batches, and a hash of some of their samples in order."""
    lengths, numbers = [], []
    for _ in range(_BATCHES_AHEAD):
        length = order.batch_length(samples_seen)
        numbers.append(np.arange(samples_seen, samples_seen + length, -(-length // _GLANCED), dtype=np.uint64))
        lengths.append(length)
        samples_seen += length
    return {"lengths": lengths, "samples": xxhash.xxh3_64_hexdigest(order.at(np.concatenate(numbers)).tobytes())}


def _inspected(recipe: Recipe) -> Inspection:
    """Inspect everything in the recipe's objects except the tensors of model and optimizer."""
    found = Inspection()
    found.ignore([recipe, *bare(recipe.model).modules(), *recipe.model.parameters()])
    for name, module in bare(recipe.model).named_modules():
        for setting, value in settings_of(module):
            found.add(f"model.{name}.{setting}" if name else f"model.{setting}", value)
    found.add("clip_grad_norm", recipe.clip_grad_norm)
    if recipe.step is None:
        found.add("loss", recipe.loss)
    else:
        found.add("step", recipe.step)
    found.add("data.dataset", recipe.data.dataset)
    found.add("data.collate_fn", recipe.data.collate_fn)
    found.add("data.worker_init_fn", recipe.data.worker_init_fn)
    if has_own_sampler(recipe.data):
        found.add("data.sampler", recipe.data.batch_sampler if recipe.data.batch_size is None else recipe.data.sampler)
    found.add("data.has_workers", recipe.data.num_workers > 0)
    for name, scheduler in recipe.schedulers.items():
        found.add(name, scheduler)
    found.add("scaler", recipe.scaler)
    for key, target in recipe.extra.items():
        found.add(f"extra.{key}", target)
    # The path of this value is last. If an earlier path also reaches an object, the earlier path names the object.
    found.add("after_step", recipe.after_step)
    return found


def _restored(found: Inspection, extra: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the found values that a resume restores."""
    for key, target in extra.items():
        if isinstance(target, Variables):
            yield from found.variables_at(target.places())
        elif has(target, "state_dict", "load_state_dict"):
            path = found.paths.get(id(target), f"extra.{key}")
            yield from (f"{path}.{name}" for name in target.state_dict())
        else:
            yield f"extra.{key}"
            yield from (found.paths[id(part)] for part in parts_held(target) if id(part) in found.paths)


def _described(model: nn.Module) -> dict[str, Any]:
    modules = {name: in_words(module) for name, module in model.named_modules()}
    return {"modules": modules, "tensors": {name: _spec(p) for name, p in model.state_dict(keep_vars=True).items()}}


def in_words(module: nn.Module) -> str:
    """Name of the module's class, and a hash of its printed settings."""
    name, text = type(module).__qualname__, settings_shown(module)
    if not is_telling("", text):
        text = "" if " at 0x" in text else xxhash.xxh3_64_hexdigest(text.encode())
    return f"{name}({text})"


def _spec(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return type(tensor).__qualname__  # A module's extra state, or a lazy tensor, which has no shape before a batch.
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def settings_of_optimizer(component: str, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's class and the settings of each parameter group, by path."""
    found: dict[str, Any] = {component: type(optimizer).__qualname__}
    for number, group in enumerate(optimizer.param_groups):
        settings = Inspection()
        settings.add("", {name: value for name, value in group.items() if name not in _OF_KERNELS | {"params"}})
        found |= {f"{component}.{number}.{name}": _plain(value) for name, value in settings.plain.items()}
    return found


def _of_order(order: SampleOrder) -> dict[str, Any]:
    names = ("batch_size", "seed", "shuffle", "drop_last")
    return {f"data.{name}": getattr(order, name) for name in names}


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, bytes) else value
