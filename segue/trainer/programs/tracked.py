"""The objects that a session tracks, as components: each kind with its way to be captured and restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from segue.continuity.live_tree import put, tree_of
from segue.errors import SessionError, UnsupportedStateError
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import (
    Component,
    ModelModes,
    ModelState,
    OptimizerState,
    StatefulComponent,
    UnsavedBuffers,
)
from segue.trainer.workloads.values import LiveValue, component_of_value
from segue.user_objects import has, in_words

_LOADER_FIX = (
    "draw batches with a tracked generator, or give the loader a state of its own (torchdata's StatefulDataLoader), "
    "or write a recipe, whose data segue orders"
)


class Variable:
    """A variable of a namespace, for example of a script's: a plain value or tensors, restored by assignment."""

    def __init__(self, namespace: dict[str, Any], name: str) -> None:
        self._namespace, self._name = namespace, name

    def capture(self) -> Any:
        if self._name not in self._namespace:
            return {}
        return {"value": tree_of(self._namespace[self._name], path=self._name)}

    def restore(self, tree: Any) -> None:
        if "value" not in tree:
            self._namespace.pop(self._name, None)
            return
        self._namespace[self._name] = put(self._namespace.get(self._name), tree["value"])


class Carried:
    """Values that a loop carries, the attributes of a namespace: restored in place."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """
        Raises:
            SessionError: a value cannot be saved.
        """
        self._name = name
        self.namespace = self.begin(values)

    def begin(self, values: Mapping[str, Any]) -> SimpleNamespace:
        """Begin again with these values, in a new namespace: the program may have kept the previous one.

        Raises:
            SessionError: a value cannot be saved.
        """
        _value_component(self._name, dict(values), call=f"run.carry({self._name!r}, ...)")
        self.namespace = SimpleNamespace(**values)
        return self.namespace

    def capture(self) -> Any:
        return LiveValue(vars(self.namespace), path=self._name).capture()

    def restore(self, tree: Any) -> None:
        LiveValue(vars(self.namespace), path=self._name).restore(tree)


@dataclass
class AsStored:
    """A component for which this process has no live object, and needs none."""

    tree: Any = None

    def capture(self) -> Any:
        return self.tree

    def restore(self, tree: Any) -> None:
        self.tree = tree


@dataclass
class Epoch:
    """How many epochs of a program are done."""

    index: int = 0

    def capture(self) -> Any:
        return {"index": self.index}

    def restore(self, tree: Any) -> None:
        self.index = int(tree["index"])


def components_of_object(name: str, target: Any) -> dict[str, Component]:
    """The components of one tracked object; the first one has the object's name.

    Raises:
        SessionError: it has no state that can be saved.
    """
    if isinstance(target, nn.Module):
        return dict(_of_module(name, target))
    if isinstance(target, torch.optim.Optimizer):
        return {name: OptimizerState(target)}
    value = _value_component(name, target, call=f"run.track({name}=...)")
    if value is not None:
        return {name: value}
    if not has(target, "state_dict", "load_state_dict"):
        what = f"run.track({name}=...) got {in_words(target)}, which has no state_dict and load_state_dict."
        fix = _LOADER_FIX if isinstance(target, DataLoader) else "track the object that holds the state, or a dict"
        raise SessionError(what=what, fix=f"{fix}.")
    return {name: StatefulComponent(target)}


def _of_module(name: str, module: nn.Module) -> Iterator[tuple[str, Component]]:
    # The names of a recipe's components, so that the model of a session is exported and compared like that of a recipe.
    modes, buffers = ("modes", "buffers") if name == "model" else (f"{name}.modes", f"{name}.buffers")
    module = bare(module)
    yield name, ModelState(module)
    yield modes, ModelModes(module)
    unsaved = UnsavedBuffers(module)
    if unsaved.is_needed():
        yield buffers, unsaved


def _value_component(name: str, target: Any, *, call: str) -> Component | None:
    """
    Raises:
        SessionError: something in the value cannot be saved.
    """
    try:
        return component_of_value(target, path=name)
    except UnsupportedStateError as error:
        what = f"{call} got {in_words(target)} with a value that is no data: {error.path} is {error.type_name}."
        raise SessionError(what=what, fix=error.fix or "") from None
