"""Everything that the user's functions and objects reach: each value with its path, and a way to read it again.

Read-only: it calls nothing of the user's, fetches no sample and draws no random number.
"""

from __future__ import annotations

import io
import logging
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from segue.continuity.code_hash import codes_of, is_users, is_users_module
from segue.continuity.object_walk import PLAIN, STREAMS
from segue.continuity.untracked.marks import ARRAYS, is_frame, is_iterator
from segue.continuity.untracked.parts import (
    attribute,
    attributes_put_on,
    compiled_by_torch,
    defaults_of,
    functions_within,
    hooks_of,
    is_torchs_own,
    module_variable,
    within_class,
    within_module,
    within_object,
)
from segue.continuity.untracked.place import GONE, RANDOM, Get, Leaf, Place

_DEEPEST = 12
_MOST_OBJECTS = 20_000
_MOST_LEAVES = 20_000
_LONG_ITEMS = 64
"""A collection with more items is one value."""


@dataclass
class Reach:
    """The values that some roots lead to; `home` is the top package of the recipe, whose code is the user's."""

    home: str
    leaves: dict[str, Leaf] = field(default_factory=dict)
    functions: list[types.FunctionType] = field(default_factory=list)
    """The user's functions among what was reached."""
    files: list[str] = field(default_factory=list)
    """Paths that were found as values."""
    _seen: dict[int, Any] = field(default_factory=dict)
    """Visited objects by id; held, because a new object could get the id of a freed one."""
    _owned: dict[int, tuple[str, Any]] = field(default_factory=dict)
    _registered: set[str] = field(default_factory=set)
    _root: str = ""

    def own(self, root: str, objects: Iterable[Any]) -> None:
        """These are of this root, a component, whatever else leads to them."""
        self._owned |= {id(found): (root, found) for found in objects}
        self._registered.add(root)

    def add(self, root: str, get: Get, *, path: str = "") -> None:
        """Follow one more object; `get` returns it. Its values are at the path of the root, or at this one."""
        self._root = root
        self._take(Place(path or root, "", get), 0)

    def release(self) -> None:
        """Keep only the ways to the values, so that other objects can be freed."""
        self._seen, self._owned, self.functions = {}, {}, []

    def _take(self, place: Place, depth: int) -> None:
        try:
            value = place.get()
        except GONE:
            return
        if isinstance(value, (PLAIN, complex)):
            self._leaf(place, value)
            return
        if isinstance(value, PurePath):
            self.files.append(str(value))
            return
        if depth > _DEEPEST or id(value) in self._seen or len(self._seen) >= _MOST_OBJECTS:
            return
        if self._owned.get(id(value), (self._root,))[0] != self._root or self._is_segues(value):
            return
        self._seen[id(value)] = value
        if _is_registrable(value):
            place = place._replace(owner=place.path, kind=type(value).__name__)
        elif is_named_values(value) and not place.owner:
            place = place._replace(owner=place.path, kind="dict")
        elif isinstance(value, STREAMS):
            place = place._replace(owner=place.path, kind=RANDOM)
        if self._is_value(value):
            self._leaf(place, value)
            if not isinstance(value, (nn.Parameter, torch.Tensor)):
                return
        for inner in self._within(place, value):
            self._take(inner, depth + 1)

    def _is_segues(self, value: Any) -> bool:
        """Whether it belongs to segue, which hooks itself into torch."""
        owner = value if isinstance(value, (type, types.FunctionType)) else type(value)
        module = str(owner.__module__)
        return module.startswith("segue.") and not module.startswith(("segue.testing", f"{self.home}."))

    def _leaf(self, place: Place, value: Any) -> None:
        if len(self.leaves) < _MOST_LEAVES and place.path not in self.leaves:
            owner = (place.owner or place.path, place.kind or type(value).__name__)
            is_registered = self._root in self._registered
            self.leaves[place.path] = Leaf(place.path, place.what, self._root, *owner, place.get, is_registered)
        if isinstance(value, str) and ("/" in value or "." in value):
            self.files.append(value)

    def _is_value(self, value: Any) -> bool:
        """Whether it is one value, and not taken apart."""
        if isinstance(value, (*ARRAYS, *STREAMS)) or is_frame(value) or is_iterator(value):
            return True
        if is_named_values(value):
            return False
        if isinstance(value, (dict, types.MappingProxyType)):
            return len(value) > _LONG_ITEMS or all(map(_is_simple, islice(list(value.values()), _LONG_ITEMS)))
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return len(value) > _LONG_ITEMS or all(map(_is_simple, islice(list(value), _LONG_ITEMS)))
        return False

    def _within(self, place: Place, value: Any) -> Iterator[Place]:
        """What an object leads to."""
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
                yield from within_class(value)
        elif isinstance(value, nn.Module):
            yield from within_module(place, value)
            yield place._replace(get=lambda: type(value))
        elif id(value) in self._owned and type(value).__module__.startswith("torch."):
            yield from functions_within(place, value)  # The rest is in its state_dict.
        else:
            yield from within_object(place, value)
            yield place._replace(get=lambda: type(value))

    def _within_function(self, place: Place, function: types.FunctionType) -> Iterator[Place]:
        place = place.code()
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:  # A variable that several functions share has one name.
                self._seen[id(cell)] = cell
                yield place.part(name, "closure variable", attribute(cell, "cell_contents"))
        yield from defaults_of(place, function)
        if is_users(function, home=self.home):
            self.functions.append(function)
            yield from self._globals_of(function)

    def _globals_of(self, function: types.FunctionType) -> Iterator[Place]:
        names = {name for code in codes_of(function.__code__) for name in code.co_names}
        known = function.__globals__
        for name in sorted(names & known.keys()):
            value = known[name]
            if not isinstance(value, types.ModuleType):
                yield module_variable(function.__module__, name, known)
            elif is_users_module(value, home=self.home):
                held = vars(value)
                yield from (module_variable(value.__name__, inner, held) for inner in sorted(names & held.keys()))


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


def _is_of_one_process(value: Any) -> bool:
    module = str(type(value).__module__)
    return module.partition(".")[0] in _OF_ONE_PROCESS or type(value).__name__ in ("lock", "RLock", "Event")


def _is_simple(item: Any, depth: int = 0) -> bool:
    if isinstance(item, (*PLAIN, *ARRAYS)):
        return True
    if isinstance(item, (list, tuple, set, frozenset, deque)) and depth < 2:
        return len(item) <= _LONG_ITEMS and all(_is_simple(each, depth + 1) for each in list(item))
    return False


def is_named_values(value: Any) -> bool:
    """Whether it is a dict by names, as programs keep their state in."""
    return type(value) is dict and 0 < len(value) <= _LONG_ITEMS and all(type(key) is str for key in list(value))


def _is_registrable(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, nn.Module) or (
        not isinstance(value, type) and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    )
