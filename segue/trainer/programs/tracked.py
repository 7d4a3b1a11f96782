"""What a session tracks, as components: each kind of object with its way to be captured and restored."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from segue.checkpoints.format.state_tree import encode_tree
from segue.errors import SessionError, UnsupportedStateError
from segue.recipe import Stateful, in_words
from segue.trainer.ranks.ddp import bare
from segue.trainer.workloads.components import (
    Component,
    ModelModes,
    ModelState,
    OptimizerState,
    PythonRng,
    StatefulComponent,
    UnsavedBuffers,
)

_LOADER_FIX = (
    "draw batches with a tracked generator, or give the loader a state of its own (torchdata's StatefulDataLoader), "
    "or write a recipe, whose data segue orders"
)


class PlainValues:
    """A dict of plain values, restored in place."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def capture(self) -> Any:
        return dict(self._values)

    def restore(self, tree: Any) -> None:
        self._values.clear()
        self._values.update(tree)


class Variable:
    """A variable of a namespace, for example of a script's: a plain value or tensors, restored by assignment."""

    def __init__(self, namespace: dict[str, Any], name: str) -> None:
        self._namespace, self._name = namespace, name

    def capture(self) -> Any:
        return {"value": self._namespace[self._name]} if self._name in self._namespace else {}

    def restore(self, tree: Any) -> None:
        if "value" not in tree:
            self._namespace.pop(self._name, None)
            return
        live = self._namespace.get(self._name)
        self._namespace[self._name] = _placed(tree["value"], live)


@dataclass
class AsStored:
    """A component of which this process has no live object, and needs none."""

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


class TorchGenerator:
    """A random generator of torch."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def capture(self) -> Any:
        return self._generator.get_state()

    def restore(self, tree: Any) -> None:
        self._generator.set_state(tree)


class NumpyGenerator:
    """A random generator of NumPy."""

    def __init__(self, generator: np.random.Generator | np.random.RandomState) -> None:
        self._generator = generator

    def capture(self) -> Any:
        if isinstance(self._generator, np.random.RandomState):
            return self._generator.get_state(legacy=False)
        return self._generator.bit_generator.state

    def restore(self, tree: Any) -> None:
        if isinstance(self._generator, np.random.RandomState):
            self._generator.set_state(tree)
        else:
            self._generator.bit_generator.state = tree


def components_of_object(name: str, target: Any) -> dict[str, Component]:
    """The components of one tracked object, the first one under its name.

    Raises:
        SessionError: it has no state that can be saved.
    """
    if isinstance(target, nn.Module):
        return dict(_of_module(name, target))
    if isinstance(target, torch.optim.Optimizer):
        return {name: OptimizerState(target)}
    if isinstance(target, torch.Generator):
        return {name: TorchGenerator(target)}
    if isinstance(target, np.random.Generator | np.random.RandomState):
        return {name: NumpyGenerator(target)}
    if isinstance(target, random.Random):
        return {name: PythonRng(target)}
    if type(target) is dict:
        return {name: _plain(name, target)}
    if isinstance(target, type) or not isinstance(target, Stateful):
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


def _placed(value: Any, live: Any) -> Any:
    """A restored value on the devices of the live one."""
    if isinstance(value, torch.Tensor):
        return value.to(live.device) if isinstance(live, torch.Tensor) else value
    if type(value) in (list, tuple) and isinstance(live, (list, tuple)) and len(value) == len(live):
        return type(value)(map(_placed, value, live))
    if isinstance(value, dict) and isinstance(live, Mapping):
        return {key: _placed(item, live.get(key)) for key, item in value.items()}
    return value


def _plain(name: str, values: dict[str, Any]) -> Component:
    try:
        encode_tree(values, path=name, tensors={})
    except UnsupportedStateError as error:
        what = f"run.track({name}=...) got a dict with a value that is not plain: {error.path} is {error.type_name}."
        raise SessionError(what=what, fix="track that object under a name of its own.") from None
    return PlainValues(values)
