"""Walks through the objects of a recipe to find plain values, arrays and code, each with its path.

The walk only reads: it calls no code of the user, fetches no sample and draws no random number.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import re
import threading
import types
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from segue.data.streams import STREAMS
from segue.user_objects import default_arguments

log = logging.getLogger(__name__)

PLAIN = (bool, int, float, str, bytes, type(None))
LONG_ITEMS = 256
"""Maximum number of items of a sequence that contains settings. A longer sequence is data and thus a single leaf."""

_DEEPEST = 8
_MOST_OBJECTS = 20_000
_SKIPPED = (
    types.ModuleType,
    logging.Logger,
    logging.Handler,
    PurePath,
    torch.optim.Optimizer,
    threading.Thread,
    type(os.environ),
    io.IOBase,
    *STREAMS,
)
_OF_ONE_PROCESS = frozenset({"multiprocessing", "concurrent", "subprocess", "socket", "threading", "_thread", "queue"})
"""Names of modules whose objects are valid only in the process that created them."""
_MOST_PLAIN = 20_000


@dataclass(frozen=True)
class Leaf:
    """One value that the walk found, with the path of the value."""

    path: str
    value: Any


@dataclass
class Inspection:
    """The values, arrays and code in some objects."""

    plain: dict[str, Any] = field(default_factory=dict)
    arrays: list[Leaf] = field(default_factory=list)
    """Tensors, arrays, frames and long sequences."""
    code: list[Leaf] = field(default_factory=list)
    """Functions and classes."""
    paths: dict[int, str] = field(default_factory=dict)
    """The path at which the walk found each object, by the object's id."""
    _seen: dict[int, Any] = field(default_factory=dict)
    """The visited objects by id.

    The objects are kept alive, because a new object could get the id of a freed object.
    """

    def ignore(self, objects: Iterable[Any]) -> None:
        """Exclude these objects from the walk."""
        self._seen |= {id(found): found for found in objects}

    def add(self, path: str, root: Any) -> None:
        """Walk into one more object."""
        self._take(path, root, 0)

    def variables_at(self, places: Iterable[tuple[int, str]]) -> Iterator[str]:
        """Return the paths of the given variables.

        `places` identifies each variable by the id of its holder and its name, or by the id of a closure cell.
        """
        for holder, name in places:
            if name and holder in self.paths:
                middle = "defaults." if isinstance(self._seen[holder], types.FunctionType) else ""
                yield f"{self.paths[holder]}.{middle}{name}"
            functions = (each for each in self._seen.values() if isinstance(each, types.FunctionType) and not name)
            for function in functions:
                cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                yield from (f"{self.paths[id(function)]}.{free}" for free, cell in cells if id(cell) == holder)

    def _take(self, path: str, value: Any, depth: int) -> None:
        try:
            self._follow(path, value, depth)
        except Exception as error:  # The object cannot be read; this must not end an attempt.
            log.debug("skipped a value that cannot be read path=%s error=%s", path, type(error).__name__)

    def _follow(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, PLAIN):
            if len(self.plain) < _MOST_PLAIN:
                self.plain[path] = value
        elif isinstance(value, _SKIPPED) or depth > _DEEPEST or id(value) in self._seen or _is_of_one_process(value):
            return
        elif len(self._seen) < _MOST_OBJECTS:
            self._seen[id(value)], self.paths[id(value)] = value, path
            if _is_data(value):
                self.arrays.append(Leaf(path, value))
            else:
                self._take_apart(path, value, depth)

    def _take_apart(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, (types.FunctionType, type)):
            self.code.append(Leaf(path, value))
        elif not isinstance(value, (*_MAPPINGS, list, tuple, set, frozenset, types.MethodType, functools.partial)):
            self.code.append(Leaf(path, type(value)))
        for name, part in parts_of(value):
            self._take(f"{path}.{name}" if path else name, part, depth + 1)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct parts of an object, by name."""
    if isinstance(value, _MAPPINGS):
        # Mappings other than dicts may load items on access. The items are copied, because threads may change the dict.
        yield from ((str(key), item) for key, item in list(value.items()) if is_telling_key(key))
    elif isinstance(value, (list, tuple)):
        yield from ((str(number), item) for number, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        plain = sorted((item for item in list(value) if isinstance(item, PLAIN)), key=repr)
        yield from ((str(number), item) for number, item in enumerate(plain))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), ("func", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, torch.nn.Module):
        yield from settings_of(value)
        yield from (part for held in (value._buffers, value._parameters, value._modules) for part in [*held.items()])
    elif not isinstance(value, type):
        yield from ((name, part) for name, part in attributes_of(value) if is_telling_key(name))


_MAPPINGS = (dict, types.MappingProxyType)


def is_telling_key(key: Any) -> bool:
    """Whether a key or a name is expected to be equal in every process."""
    if isinstance(key, str):
        return len(key) <= 100 and not _OF_PLACE.search(key)
    return isinstance(key, int) and abs(key) < 10**9


def settings_of(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the settings in a torch module, without its tensors, its submodules and the attributes that torch sets.

    The function also omits names that differ in each process, e.g. the UUID by which FSDP stores its state in a module.
    """
    for name, value in vars(module).items():
        if name not in _OF_MODULES and is_telling_key(name):
            yield name, value


_OF_MODULES = frozenset(vars(torch.nn.Module()))


def is_telling(path: str, value: Any) -> bool:
    """Whether a plain value is expected to be equal in every process that builds the same recipe.

    The result is False for times, addresses, paths and generated names.
    """
    name = path.rpartition(".")[2]
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) < 10**9 and not _OF_PROCESS.search(name)
    if isinstance(value, float):
        return not abs(value) >= 1e9 and not _OF_TIME.search(path)
    if isinstance(value, str):
        return len(value) <= 100 and not _OF_PLACE.search(value) and not _OF_PROCESS.search(name)
    return len(value) <= 1000


_OF_TIME = re.compile(
    r"time|clock|stamp|start|begin|began|created|elapsed|seconds|(^|[._])(t\d?|tic|toc|now)([._]|$)", re.IGNORECASE
)
_OF_PROCESS = re.compile(
    r"(pid|host|hostname|node|uuid|port|created|date|thread_id|native_id|ident|fd|fileno|_handle)$", re.IGNORECASE
)
_OF_PLACE = re.compile(
    r"[/\\]|\b[0-9a-f]{12,}\b|\d{4}-\d\d-\d\d|\d\d:\d\d|\bat 0x|\d{8}[_T-]?\d{4,6}|\d{4}[_-]\d{4}"
    r"|^(cuda|cpu|mps|xpu|auto)(:\d+)?$",
    re.IGNORECASE,
)


def _is_of_one_process(value: Any) -> bool:
    module = str(type(value).__module__)
    return module.partition(".")[0] in _OF_ONE_PROCESS or module.startswith("torch._")


def _is_data(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray, bytearray, memoryview, range, array)):
        return True
    if type(value).__module__.partition(".")[0] in ("pandas", "pyarrow", "polars"):
        return True
    # Only known types are tested, because other objects with a length may load or draw items on access.
    return isinstance(value, (list, tuple, set, frozenset, deque, *_MAPPINGS)) and len(value) > LONG_ITEMS


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield "defaults", default_arguments(function)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # The cell is not bound yet.


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the attributes of one object, including slots.

    The function does not call code of the object's class.
    """
    try:
        # The user's class is bypassed, because an attribute access may load data.
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    yield from list(held.items())
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            found = inspect.getattr_static(value, name, None)
            if isinstance(found, types.MemberDescriptorType):
                try:
                    yield name, found.__get__(value)
                except AttributeError:
                    continue  # The slot is not set.
