"""Components for the objects that a session tracks. Each kind of object has its own method of capture and restore."""

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
    "or write a recipe, for which segue orders the data"
)


class Variable:
    """A variable in a namespace, for example in the namespace of a script. Its value is plain data or tensors. A
    restore assigns the value to the variable."""

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
    """Values that a loop carries in the attributes of a namespace. A restore changes the attributes in place."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """
        Raises:
            SessionError: a value cannot be saved.
        """
        self._name = name
        self.namespace = self.begin(values)

    def begin(self, values: Mapping[str, Any]) -> SimpleNamespace:
        """Start again with these values in a new namespace, because the program may still hold the old namespace.

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
    """The stored state of a component that has no live object in this process. The process needs no such object."""

    tree: Any = None

    def capture(self) -> Any:
        return self.tree

    def restore(self, tree: Any) -> None:
        self.tree = tree


@dataclass
class Epoch:
    """The number of completed epochs of a program."""

    index: int = 0

    def capture(self) -> Any:
        return {"index": self.index}

    def restore(self, tree: Any) -> None:
        self.index = int(tree["index"])


def components_of_object(name: str, target: Any) -> dict[str, Component]:
    """Return the components of one tracked object. The first component has the name of the object.

    Raises:
        SessionError: the object has no state that can be saved.
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
    # Use the same names as a recipe, so that a session's model is exported and compared like a recipe's model.
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
        SessionError: a part of the value cannot be saved.
    """
    try:
        return component_of_value(target, path=name)
    except UnsupportedStateError as error:
        what = f"{call} got {in_words(target)} with a value that is not data: {error.path} is {error.type_name}."
        raise SessionError(what=what, fix=error.fix or "") from None
