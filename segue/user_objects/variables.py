"""Defines the values that can be registered without a state_dict: values with parts, and variables of any value."""

from __future__ import annotations

import contextvars
import functools
import random
import sys
import threading
import types
from array import array
from collections import deque
from collections.abc import Iterator, MutableMapping, MutableSet
from enum import Enum
from typing import Any

from segue.errors import SessionError
from segue.user_objects import default_arguments, is_users_file

_ABSENT = object()
_COLLECTIONS = (MutableMapping, MutableSet, list, deque, bytearray, array)
_OF_LIBRARIES = frozenset(
    {"torch.Tensor", "torch._C.Generator", "torch.Generator", "numpy.ndarray", "numpy.random._generator.Generator"}
    | {"numpy.random.mtrand.RandomState", "pandas.DataFrame", "pandas.Series"}
    | {"pandas.core.frame.DataFrame", "pandas.core.series.Series"}
)
_ITERATORS = frozenset(
    {"count", "cycle", "enumerate", "list_iterator", "tuple_iterator", "range_iterator", "str_iterator"}
    | {"str_ascii_iterator"}
)
_FIXED = (bool, int, float, complex, str, bytes, tuple, frozenset, types.NoneType, Enum)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
CODE = (*_FUNCTIONS, types.ModuleType, type)
"""The types of code, which is not state."""


def is_registrable(value: Any) -> bool:
    """Whether segue can restore the state of a value in place. Only the type of the value decides.

    The permitted types are collections, arrays, tables, random generators, and the user's own classes with attributes.
    """
    kind = type(value)
    if isinstance(value, (*_COLLECTIONS, Variables, contextvars.ContextVar, threading.local, random.Random)):
        return True
    if kind.__module__ in ("builtins", "itertools") and kind.__name__ in _ITERATORS:
        return True
    if any(f"{base.__module__}.{base.__qualname__}" in _OF_LIBRARIES for base in kind.__mro__):
        return True
    return not isinstance(value, (*_FIXED, *CODE)) and is_users_class(kind) and _has_attributes(value)


def is_users_class(kind: type) -> bool:
    """Whether a class is part of the user's code, or declares the fields of its objects."""
    if "__dataclass_fields__" in dir(kind) or kind is types.SimpleNamespace:
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "builtins" and (file is None or is_users_file(file))


def _has_attributes(value: Any) -> bool:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    return bool(held) or any(vars(owner).get("__slots__") for owner in type(value).__mro__)


class Variables:
    """Variables that training sets and that are part of the run's state.

    Pass them to `Recipe.extra` or to `run.track`, for example `segue.Variables(loss, "calls")`. The first argument is
    the holder of the variables. If the holder is a function, the variables are closure variables, default arguments,
    attributes or global variables. If the holder is a module, a class or an object, the variables are attributes. If
    the holder is a dict such as `globals()`, the variables are entries. A resume restores tensors, arrays, lists and
    dicts in place, so that every reference sees the change. It assigns all other values.

    Raises:
        SessionError: the holder lacks a variable with one of the names, or no name was given.
    """

    def __init__(self, holder: Any, *names: str) -> None:
        self._holder = holder.__func__ if isinstance(holder, types.MethodType) else holder
        self.names = names
        missing = [name for name in names if self.get(name, _ABSENT) is _ABSENT and not self._may_come(name)]
        if missing or not names:
            what = f"segue.Variables got the name {missing[0]!r}, which its holder lacks." if missing else _NO_NAMES
            raise SessionError(what=what, fix='name variables that it has: segue.Variables(loss, "calls").')

    def get(self, name: str, default: Any = None) -> Any:
        """Return the current value of the variable. If the variable has no value, return the default."""
        holder = self._holder
        if isinstance(holder, types.FunctionType):
            return _get_of_function(holder, name, default)
        if isinstance(holder, MutableMapping):
            return holder.get(name, default)
        return getattr(holder, name, default)

    def set(self, name: str, value: Any) -> None:
        """Set the value of the variable."""
        holder = self._holder
        if isinstance(holder, types.FunctionType):
            _set_of_function(holder, name, value)
        elif isinstance(holder, MutableMapping):
            holder[name] = value
        else:
            setattr(holder, name, value)

    def places(self) -> Iterator[tuple[int, str]]:
        """Yield for each variable the identity of its holder, and the name of the variable in the holder.

        For a closure cell, the name is empty.
        """
        holder = self._holder
        for name in self.names:
            if isinstance(holder, types.FunctionType):
                cell = _cell(holder, name)
                is_own = name in default_arguments(holder) or name in vars(holder)
                yield (id(cell), "") if cell is not None else (id(holder if is_own else holder.__globals__), name)
            else:
                yield id(vars(holder) if isinstance(holder, types.ModuleType) else holder), name

    def _may_come(self, name: str) -> bool:
        """Whether the holder may later get a variable with this name.

        A function can get such a variable only if its code names the variable.
        """
        if not isinstance(self._holder, types.FunctionType):
            return True
        return name in (*self._holder.__code__.co_freevars, *self._holder.__code__.co_names)


_NO_NAMES = "segue.Variables got no name."


def _cell(function: types.FunctionType, name: str) -> types.CellType | None:
    names = function.__code__.co_freevars
    return (function.__closure__ or ())[names.index(name)] if name in names else None


def _get_of_function(function: types.FunctionType, name: str, default: Any) -> Any:
    cell = _cell(function, name)
    if cell is not None:
        try:
            return cell.cell_contents
        except ValueError:
            return default
    for held in (default_arguments(function), vars(function), function.__globals__):
        if name in held:
            return held[name]
    return default


def _set_of_function(function: types.FunctionType, name: str, value: Any) -> None:
    cell = _cell(function, name)
    if cell is not None:
        cell.cell_contents = value
    elif name in (function.__kwdefaults__ or {}):
        function.__kwdefaults__[name] = value  # type: ignore[index]
    elif name in (defaults := default_arguments(function)):
        positional = list(defaults)[: len(function.__defaults__ or ())]
        function.__defaults__ = tuple(value if each == name else defaults[each] for each in positional)
    else:
        held = vars(function) if name in vars(function) else function.__globals__
        held[name] = value
