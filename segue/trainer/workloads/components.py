"""The components of a training state, which can be captured and restored."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from segue.checkpoints.format.dtensor import is_sharded, placed_like, wholly_read
from segue.checkpoints.format.state_tree import is_storable
from segue.recipe import Stateful
from segue.trainer.workloads import buffers


class Component(Protocol):
    """A named part of the training state."""

    def capture(self) -> Any:
        """Return the state as a tree of data. The tree contains the live tensors."""
        ...

    def restore(self, tree: Any) -> None:
        """Load the state into the live object."""
        ...


@dataclass
class Progress:
    """The progress of the run: its steps, its samples, and the reason to finish it."""

    step: int = 0
    samples_seen: int = 0
    recent_losses: tuple[float, ...] = ()
    """Recent losses, which segue uses to detect a spike. A resumed attempt needs the same losses."""
    finish_reason: str | None = None
    """Reason why the training code ended the run before its goal; None if the training code did not end the run."""
    is_finish_kept: bool = True
    """Whether a resume from this state ends for the same `finish_reason`."""
    owes_evaluation: bool = False
    """Whether the evaluation after the last step is missing, because a notice came first."""

    def is_finished(self, goal: int) -> bool:
        return self.step >= goal or self.finish_reason is not None

    def capture(self) -> Any:
        # The list is stored only if it is not empty. Spike detection may begin at any checkpoint, and a missing list
        # counts as empty.
        recent = {"recent_losses": list(self.recent_losses)} if self.recent_losses else {}
        # The reason is stored, so that a resume from the last checkpoint does not continue to train.
        is_kept = self.finish_reason is not None and self.is_finish_kept
        finish = {"finish_reason": self.finish_reason} if is_kept else {}
        owed = {"owes_evaluation": True} if self.owes_evaluation else {}
        return {"step": self.step, "samples_seen": self.samples_seen} | recent | finish | owed

    def restore(self, tree: Any) -> None:
        self.step, self.samples_seen = int(tree["step"]), int(tree["samples_seen"])
        self.recent_losses = tuple(tree.get("recent_losses", ()))
        self.finish_reason = tree.get("finish_reason")
        self.owes_evaluation = bool(tree.get("owes_evaluation", False))


class StatefulComponent:
    """An object with `state_dict` and `load_state_dict`."""

    def __init__(self, target: Stateful, *, is_spread: bool = False) -> None:
        self._target, self._is_spread = target, is_spread

    def capture(self) -> Any:
        return self._target.state_dict()

    def restore(self, tree: Any) -> None:
        if isinstance(self._target, nn.Module) and isinstance(tree, Mapping):
            buffers.fit(self._target, tree)
        # The live state is read only if ranks share tensors. Otherwise no tensor has to be spread.
        self._target.load_state_dict(spread_like(tree, self._target.state_dict()) if self._is_spread else tree)


class OptimizerState:
    """The state of an optimizer. Before the first step of the optimizer, the parameters show which parts of the state
    are sharded."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def capture(self) -> Any:
        return self._optimizer.state_dict()

    def restore(self, tree: Any) -> None:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in tree["param_groups"] for number in group["params"]]
        held = dict(zip(numbers, parameters, strict=False))
        state = {number: _slot_like(slot, held.get(number)) for number, slot in tree["state"].items()}
        held_in_groups = [
            {n: v for n, v in group.items() if isinstance(v, torch.Tensor)} for group in self._optimizer.param_groups
        ]
        self._optimizer.load_state_dict({**tree, "state": state})
        _keep_tensors(self._optimizer.param_groups, held_in_groups)
        # torch casts loaded state to the type of the parameter, so fp32 state of a bf16 parameter would be rounded.
        for number, slot in state.items():
            loaded = self._optimizer.state.get(held[number]) if number in held else None
            if isinstance(loaded, dict) and isinstance(slot, dict):
                loaded |= {name: _typed_like(value, slot.get(name)) for name, value in loaded.items()}


def _keep_tensors(groups: Sequence[dict[str, Any]], before: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Copy loaded values, such as the learning rate, into the live tensors that a recorded or compiled step reads."""
    for group, live in zip(groups, before, strict=False):
        for name, tensor in live.items():
            loaded = group.get(name)
            if isinstance(loaded, torch.Tensor) and loaded.shape == tensor.shape:
                with torch.no_grad():
                    tensor.copy_(loaded)
                group[name] = tensor


class ModelState:
    """Parameters and buffers, with version numbers by which a module recognizes the format of an old state."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        state = model.state_dict()
        self._built, self._modules = frozenset(state), frozenset(getattr(state, "_metadata", {}))

    def capture(self) -> Any:
        state = self._model.state_dict()
        # If the first forward pass creates a module, the module does not exist yet when a resume compares its state.
        metadata = {name: each for name, each in getattr(state, "_metadata", {}).items() if name in self._modules}
        tree = {"state": dict(state), "metadata": metadata}
        if state.keys() == self._built:
            return tree
        late = [name for name in state if name not in self._built]  # In the order of registration.
        return tree | {"late": late, "gone": sorted(self._built - state.keys())}

    def restore(self, tree: Any) -> None:
        buffers.fit(self._model, tree["state"], late=tree.get("late", ()), gone=tree.get("gone", ()))
        live = self._model.state_dict()
        state: OrderedDict[str, Any] = OrderedDict(spread_like(tree["state"], live))
        state._metadata = tree["metadata"]  # type: ignore[attr-defined]
        self._model.load_state_dict(state)

    def parameter_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self._model.named_parameters(remove_duplicate=False))


class ModelModes:
    """The mode (train or eval) of each module, and whether each parameter is trained."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._awaited: dict[str, bool] = {}
        """Restored modes of all modules, if some modules will be created only in the first forward pass; otherwise
        empty."""

    def capture(self) -> Any:
        training = {name: module.training for name, module in self._model.named_modules()}
        return {
            "training": {name: training.get(name, mode) for name, mode in self._awaited.items()} | training,
            "requires_grad": {name: parameter.requires_grad for name, parameter in self._model.named_parameters()},
        }

    def restore(self, tree: Any) -> None:
        # If only one side has a parameter, the digests report the parameter. An exception from here would not name the
        # parameter.
        is_awaited = not tree["training"].keys() <= dict(self._model.named_modules()).keys()
        self._awaited = tree["training"] if is_awaited else {}
        for name, module in self._model.named_modules():
            module.training = tree["training"].get(name, module.training)
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(tree["requires_grad"].get(name, parameter.requires_grad))


class UnsavedBuffers:
    """Buffers that are in no state_dict because the model can compute them. Training may still change such buffers.

    The component also includes buffers and trained parameters that a user's own state_dict leaves out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._left_out = frozenset(_left_out(model))
        self._awaited: dict[str, torch.Tensor] = {}
        """All restored buffers, if some of their modules will be created only in the first forward pass; otherwise
        empty."""

    def is_needed(self) -> bool:
        return any(True for _ in self._names())

    def capture(self) -> Any:
        found = {_path(at, name): self._group(at, name).get(name) for at, name in self._names()}
        # Leave out a buffer that cannot be stored. Such a buffer is in no state_dict, and must not end the run.
        live = {path: buffer for path, buffer in found.items() if buffer is not None and is_storable(buffer)}
        return {path: live.get(path, buffer) for path, buffer in self._awaited.items()} | live

    @torch.no_grad()
    def restore(self, tree: Any) -> None:
        there = {_path(at, name) for at, name in self._names()}
        # The missing buffers are masks or tables that the first forward pass registers, perhaps in a module that it
        # creates.
        late = [path for path in tree if path not in there]
        unplaced = [path for path in late if not buffers.register(self._model, path, tree[path], persistent=False)]
        self._awaited = dict(tree) if unplaced else {}
        for at, name in self._names():
            held = self._group(at, name)
            live, saved = held.get(name), tree.get(_path(at, name))
            if saved is None:
                continue
            if live is not None and live.shape == saved.shape and live.dtype == saved.dtype:
                live.copy_(saved)  # In place, so that objects that share the buffer still share it.
            else:
                parameter = next(self._model.parameters(), saved)
                held[name] = saved.to(parameter.device if live is None else live.device)

    def _group(self, at: str, name: str) -> dict[str, Any]:
        module = self._model.get_submodule(at)
        return module._parameters if name in module._parameters else module._buffers

    def _names(self) -> Iterator[tuple[str, str]]:
        for at, module in self._model.named_modules():
            yield from ((at, name) for name in sorted(module._non_persistent_buffers_set))
        for path in sorted(self._left_out):
            at, _, name = path.rpartition(".")
            yield at, name


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _left_out(model: nn.Module) -> Iterator[str]:
    """Persistent buffers and trained parameters that the model's state_dict does not contain."""
    state = model.state_dict()
    places = {value.untyped_storage().data_ptr() for value in state.values() if _has_storage(value)}
    unsaved = {_path(at, n) for at, module in model.named_modules() for n in module._non_persistent_buffers_set}
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    for name, tensor in (*trained, *model.named_buffers()):
        is_held = name in state or not _has_storage(tensor) or tensor.untyped_storage().data_ptr() in places
        if not is_held and name not in unsaved:
            yield name


def _has_storage(value: Any) -> bool:
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and not is_sharded(value)
    return is_plain and not is_lazy(value) and value.device.type != "meta" and value.numel() > 0


class CudaRng:
    """torch's random streams of the accelerators that hold the model."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices

    def capture(self) -> Any:
        return [torch.cuda.get_rng_state(device) for device in self._devices]

    def restore(self, tree: Any) -> None:
        for device, state in zip(self._devices, tree, strict=True):
            torch.cuda.set_rng_state(state, device)


def spread_like(tree: Any, live: Any) -> Any:
    """Return the state tree with its tensors sharded over the ranks in the same way as the live tensors."""
    if isinstance(tree, torch.Tensor) and isinstance(live, torch.Tensor):
        return placed_like(tree, live)
    if isinstance(tree, dict) and isinstance(live, Mapping):
        return {key: spread_like(value, live.get(key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)) and isinstance(live, (list, tuple)) and len(tree) == len(live):
        return type(tree)(spread_like(value, other) for value, other in zip(tree, live, strict=True))
    return _wholly_read(tree)


def _slot_like(slot: Any, parameter: torch.Tensor | None) -> Any:
    if parameter is None or not isinstance(slot, dict):
        return _wholly_read(slot)
    return {
        key: placed_like(value, parameter)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        else _wholly_read(value)
        for key, value in slot.items()
    }


def _wholly_read(tree: Any) -> Any:
    """Return the tree. If this rank has read only slices of a tensor in the tree, raise an error."""
    if isinstance(tree, torch.Tensor):
        return wholly_read(tree)
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ():
        _wholly_read(value)
    return tree


def _typed_like(loaded: Any, saved: Any) -> Any:
    if not isinstance(loaded, torch.Tensor) or not isinstance(saved, torch.Tensor) or loaded.dtype == saved.dtype:
        return loaded
    return saved.to(loaded.device)
