"""Finds all values that the user's functions and objects reach.

Each value has a path and a function that reads the value again. The walk only reads: it calls no code of the user,
fetches no sample and draws no random number.
"""

from __future__ import annotations

import io
import logging
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import islice
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from segue.checkpoints.format.collections import is_table
from segue.continuity.code_hash import codes_of, is_users, is_users_module
from segue.continuity.iterators import is_iterator
from segue.continuity.object_walk import PLAIN
from segue.continuity.untracked.marks import ARRAYS
from segue.continuity.untracked.parts import (
    attribute,
    attributes_put_on,
    compiled_by_torch,
    defaults_of,
    functions_within,
    hooks_of,
    is_torchs_own,
    module_variable,
    put_on_optimizer,
    within_class,
    within_module,
    within_object,
)
from segue.continuity.untracked.place import (
    Get,
    Leaf,
    ValuePlace,
    fetched,
    is_variable_of,
    name_of_definition,
    names_rebound,
)
from segue.data.streams import STREAMS
from segue.user_objects.variables import Variables

log = logging.getLogger(__name__)

_DEEPEST = 12
_MOST_OBJECTS = 20_000
_MOST_LEAVES = 20_000
_LONG_ITEMS = 64
"""Maximum number of items that the walk visits. A larger collection is treated as a single value."""


@dataclass
class Reach:
    """The values that some roots can reach. `home` is the top package of the recipe, whose code is the user's code."""

    home: str
    leaves: dict[str, Leaf] = field(default_factory=dict)
    functions: list[types.FunctionType] = field(default_factory=list)
    """The functions of the user that the walk reached."""
    files: list[str] = field(default_factory=list)
    """Paths of the files that contain code of the user."""
    _seen: dict[int, Any] = field(default_factory=dict)
    """The visited objects by id.

    The objects are kept alive, because a new object could get the id of a freed object.
    """
    _owned: dict[int, tuple[str, Any]] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    """Names of the components."""
    scopes: tuple[types.CodeType, ...] = ()
    """The functions that build the recipe or contain the loop.

    Code in a scope can use the variables of the scope by name.
    """
    rebound: set[str] = field(default_factory=set)
    """Names of variables to which a function of the user assigns another object."""
    _variables: set[tuple[int, str]] = field(default_factory=set)
    """The registered variables, by holder and name."""
    _root: str = ""

    def own(self, root: str, objects: Iterable[Any]) -> None:
        """Record that the given objects belong to the component `root`, even if other paths also reach them."""
        for found in objects:
            if isinstance(found, Variables):
                self._variables.update(found.places())
            self._owned[id(found)] = (root, found)
        self.registered.add(root)

    def add(
        self, root: str, get: Get, *, path: str = "", expression: str = "", holder: str = "", of: Any = None
    ) -> None:
        """Follow one more object, which the function `get` returns.

        The paths of the values begin with the given path, or with the name of the root. If `of` is given, the object is
        an attribute of the object `of`, and `holder` is the expression for `of`.
        """
        self._root = root
        name = root.rpartition(".")[2] if holder else ""
        if (id(of), name) in self._variables:
            return
        self._take(ValuePlace(path or root, "attribute" if holder else "", get, expression, holder, name), 0)

    def is_owned(self, value: Any) -> bool:
        """Whether the value belongs to a component."""
        return id(value) in self._owned or (isinstance(value, torch.Tensor) and id(value) in self._tensors_owned)

    def is_address(self, key: Any) -> bool:
        """Whether a key is the id of an object of a component. Ids differ in each process."""
        return type(key) is int and (key in self._owned or key in self._tensors_owned)

    @cached_property
    def _tensors_owned(self) -> set[int]:
        owned = [found for _, found in self._owned.values()]
        tables = [held for each in owned if isinstance(each, nn.Module) for held in (each._parameters, each._buffers)]
        groups = [group for each in owned if isinstance(each, torch.optim.Optimizer) for group in each.param_groups]
        held = (tensor for table in tables for _, tensor in [*table.items()])
        return {id(tensor) for tensor in (*held, *(each for group in groups for each in group["params"]))}

    def release(self) -> None:
        """Keep only the functions that read values, and the objects of components.

        Python can then free all other objects.
        """
        self._seen, self.functions = {}, []

    def _take(self, place: ValuePlace, depth: int) -> None:
        try:
            self._follow(place, depth)
        except Exception as error:  # The object cannot be read; this must not end an attempt.
            log.debug("skipped a value that cannot be read path=%s error=%s", place.path, type(error).__name__)

    def _follow(self, place: ValuePlace, depth: int) -> None:
        value = place.get()
        if isinstance(value, PurePath):
            self.files.append(str(value))
        if isinstance(value, _PLAIN):
            self._leaf(place, value)
            return
        if depth > _DEEPEST or id(value) in self._seen or len(self._seen) >= _MOST_OBJECTS:
            return
        if self._owned.get(id(value), (self._root,))[0] != self._root or self._is_segues(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, Variables):
            return
        if self._is_value(value):
            self._leaf(place, value)
            if not isinstance(value, (nn.Parameter, torch.Tensor)):
                return
        for inner in self._within(place, value):
            if (id(value), inner.name) not in self._variables:
                self._take(inner, depth + 1)

    def _is_segues(self, value: Any) -> bool:
        """Whether the value belongs to segue, e.g. a hook that segue adds to torch."""
        owner = value if isinstance(value, (type, types.FunctionType)) else type(value)
        module = str(owner.__module__)
        return module.startswith("segue.") and not module.startswith(("segue.testing", f"{self.home}."))

    def _leaf(self, place: ValuePlace, value: Any) -> None:
        if len(self.leaves) < _MOST_LEAVES and place.path not in self.leaves:
            is_registered = self._root in self.registered
            self.leaves[place.path] = Leaf(place.path, place.what, self._root, place.get, is_registered, place)
        if isinstance(value, str) and ("/" in value or "." in value):
            self.files.append(value)

    def _is_value(self, value: Any) -> bool:
        """Whether the walk treats the value as a whole and does not follow its parts."""
        if isinstance(value, (*ARRAYS, *STREAMS)) or is_table(value) or is_iterator(value):
            return True
        if is_named_values(value):
            return False
        if isinstance(value, (dict, types.MappingProxyType)):
            return len(value) > _LONG_ITEMS or all(map(_is_simple, islice(list(value.values()), _LONG_ITEMS)))
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return len(value) > _LONG_ITEMS or all(map(_is_simple, islice(list(value), _LONG_ITEMS)))
        return False

    def _within(self, place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
        """Yield the places of the parts of an object."""
        if isinstance(value, _SKIPPED) or _is_of_one_process(value):
            return
        if is_torchs_own(value):
            yield from compiled_by_torch(place, value)
        elif isinstance(value, torch.Tensor):
            yield from hooks_of(place, value, ("_backward_hooks", "_post_accumulate_grad_hooks"))
            yield from attributes_put_on(place, value)
        elif isinstance(value, types.FunctionType):
            yield from self._within_function(place, value)
        elif isinstance(value, type):
            if is_users(value, home=self.home):
                yield from within_class(value, place.expression)
        elif isinstance(value, nn.Module):
            yield from within_module(place, value)
            yield self._class_of(place, value)
        elif id(value) in self._owned and type(value).__module__.startswith("torch."):
            yield from functions_within(place, value)  # Its other values are in its state_dict.
            if isinstance(value, torch.optim.Optimizer):
                yield from put_on_optimizer(place, value)
        elif _is_of_trainer(value):
            yield from filter(self._has_users, within_object(place, value))
        else:
            yield from within_object(place, value)
            yield self._class_of(place, value)

    def _has_users(self, place: ValuePlace) -> bool:
        """Whether the place contains an object of a class of the user, or a collection of such objects."""
        value = place.get()
        items = islice(value.values() if isinstance(value, dict) else value, _LONG_ITEMS) if _is_items(value) else ()
        return any(is_users(type(each), home=self.home) for each in (value, *items))

    def _class_of(self, place: ValuePlace, value: Any) -> ValuePlace:
        name = name_of_definition(type(value), self.scopes)
        return place.within(lambda: type(value), name or (f"type({place.expression})" if place.expression else ""))

    def _within_function(self, place: ValuePlace, function: types.FunctionType) -> Iterator[ValuePlace]:
        place = place._replace(expression=name_of_definition(function, self.scopes) or place.expression)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:  # A variable that several functions share is followed once.
                self._seen[id(cell)] = cell
                is_here = is_variable_of(function, name, self.scopes)
                expression = name if is_here else fetched(place.expression, name)
                if (id(cell), "") not in self._variables:
                    get = attribute(cell, "cell_contents")
                    yield place.part(name, "closure variable", get, expression=expression)
        yield from defaults_of(place, function)
        if is_users(function, home=self.home):
            self.functions.append(function)
            self.rebound |= names_rebound(function.__code__)
            yield from self._globals_of(function)

    def _globals_of(self, function: types.FunctionType) -> Iterator[ValuePlace]:
        names = {name for code in codes_of(function.__code__) for name in code.co_names}
        known = function.__globals__
        for name in sorted(names & known.keys()):
            value = known[name]
            if not isinstance(value, types.ModuleType):
                yield from self._variable(function.__module__, name, known)
            elif is_users_module(value, home=self.home):
                held = vars(value)
                for inner in sorted(names & held.keys()):
                    yield from self._variable(value.__name__, inner, held)

    def _variable(self, module: str, name: str, known: dict[str, Any]) -> Iterator[ValuePlace]:
        if (id(known), name) not in self._variables:
            file = known.get("__file__")
            yield module_variable(module, name, known, is_here=file in {code.co_filename for code in self.scopes})


_PLAIN = (*PLAIN, complex, Decimal, Fraction, PurePath, range, slice, Enum)
"""The types of plain values. Dates are not included, because they belong to the process. Devices are not included,
because they are settings."""
_SKIPPED = (
    types.ModuleType,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    io.TextIOBase,
    torch.device,
    torch.dtype,
    torch.Size,
)
_OF_ONE_PROCESS = frozenset({"concurrent", "subprocess", "socket", "selectors", "asyncio", "ssl"})
_OF_ONE_PROCESS |= {"queue", "_queue"}  # The content of a queue depends on threads.


_OF_TRAINERS = frozenset(
    {"lightning", "lightning_fabric", "pytorch_lightning", "accelerate", "transformers", "ignite", "deepspeed"}
)
"""Packages whose objects run the loop and count its steps.

The packages' own checkpoints or segue's callbacks store these counts.
"""


def _is_of_trainer(value: Any) -> bool:
    return str(type(value).__module__).partition(".")[0] in _OF_TRAINERS


def _is_items(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set))


def _is_of_one_process(value: Any) -> bool:
    module = str(type(value).__module__)
    return module.partition(".")[0] in _OF_ONE_PROCESS or type(value).__name__ in ("lock", "RLock", "Event")


def _is_simple(item: Any, depth: int = 0) -> bool:
    if isinstance(item, (*_PLAIN, *ARRAYS)):
        return True
    if isinstance(item, (list, tuple, set, frozenset, deque)) and depth < 2:
        return len(item) <= _LONG_ITEMS and all(_is_simple(each, depth + 1) for each in list(item))
    return False


def is_named_values(value: Any) -> bool:
    """Whether the value is a dict with names as keys, in which programs often keep state."""
    return type(value) is dict and 0 < len(value) <= _LONG_ITEMS and all(type(key) is str for key in list(value))
