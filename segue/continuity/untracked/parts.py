"""Yields the direct parts of the objects of a recipe, each with its place, without calling code of the user."""

from __future__ import annotations

import contextvars
import functools
import gc
import operator
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import nn

from segue.continuity.object_walk import attributes_of, is_telling_key, settings_of
from segue.continuity.untracked.place import MODULE_VARIABLE, Get, ValuePlace
from segue.user_objects import default_arguments, needed_arguments

_LIFE_CYCLE = ("__init__", "__call__", "__getitem__", "__getitems__", "__iter__", "__next__", "__len__", "__enter__")
"""Special methods whose code the walk follows like the code of other methods."""


def attribute(holder: Any, name: str) -> Get:
    return lambda: getattr(holder, name)


def defaults_of(place: ValuePlace, function: types.FunctionType) -> Iterator[ValuePlace]:
    """Yield the places of the default arguments and the attributes of a function."""
    for name in default_arguments(function):
        yield place.part(name, "default argument", lambda name=name: default_arguments(function)[name])  # type: ignore[misc]
    for name in vars(function):
        yield place.part(name, "function attribute", lambda name=name: vars(function)[name])  # type: ignore[misc]


def module_variable(module: str, name: str, known: dict[str, Any], *, is_here: bool) -> ValuePlace:
    """Return the place of a variable of a module. `is_here` means that the recipe or the loop is in this module."""
    expression = name if is_here else f"{module}.{name}"
    return ValuePlace(
        f"{module}.{name}", MODULE_VARIABLE, lambda: known[name], expression, "globals()" if is_here else module, name
    )


def within_class(owner: type, expression: str) -> Iterator[ValuePlace]:
    """Yield the attributes and methods of a class of the user, including inherited attributes and methods."""
    if issubclass(owner, Enum):
        return
    start = f"{owner.__module__}.{owner.__qualname__}"
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and name not in _LIFE_CYCLE:
            continue
        function = _function_of(value)
        if function is not None:
            method = f"{expression}.{name}" if expression else ""
            yield ValuePlace(f"{start}.{name}", "method", lambda function=function: function, method)  # type: ignore[misc]
        elif not _is_descriptor(value):
            inner = f"{expression}.{name}" if expression else ""
            yield ValuePlace(f"{start}.{name}", "class attribute", _of_class(owner, name), inner, expression, name)
    for number, base in enumerate(owner.__mro__[1:], start=1):
        above = f"{expression}.__mro__[{number}]" if expression else ""
        yield ValuePlace(start, "class", lambda base=base: base, above)  # type: ignore[misc]


def _of_class(owner: type, name: str) -> Get:
    return lambda: vars(owner)[name]


def _function_of(value: Any) -> types.FunctionType | None:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value if isinstance(value, types.FunctionType) else None


def _is_descriptor(value: Any) -> bool:
    return isinstance(value, (property, types.MemberDescriptorType, types.GetSetDescriptorType, type))


def hooks_of(place: ValuePlace, holder: Any, names: Iterable[str]) -> Iterator[ValuePlace]:
    for name in names:
        hooks = getattr(holder, name, None)
        held = f"{place.expression}.{name}" if place.expression else ""
        for number, hook in enumerate(list(hooks.values()) if isinstance(hooks, dict) else ()):
            expression = f"[*{held}.values()][{number}]" if held else ""
            yield place.part(f"hook{number or ''}", "hook", lambda hook=hook: hook, expression=expression)  # type: ignore[misc]


_HOOKS_OF_MODULES = tuple(name for name in vars(nn.Module()) if "hooks" in name)
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


_FROM_SHAPES = ("in_features", "in_channels", "num_features")
"""Attributes that lazy layers of torch set at their first input, and that do not affect results."""


def within_module(place: ValuePlace, module: nn.Module) -> Iterator[ValuePlace]:
    if isinstance(module, torch.jit.ScriptModule):
        for name in module._concrete_type.get_attributes():
            yield place.part(name, "attribute", attribute(module, name), expression=place.dotted(name))
    else:
        is_torchs = type(module).__module__.startswith("torch.nn.")
        for name, _ in settings_of(module):
            if not (is_torchs and name in _FROM_SHAPES):
                yield place.part(name, "attribute", _entry(module, name), expression=place.dotted(name))
    for group in ("_parameters", "_buffers", "_modules"):
        held = getattr(module, group)  # In a TorchScript module, this is not a dict.
        for name, _ in [*held.items()]:
            get = partial(operator.getitem, held, name)
            yield place.part(name, "attribute", get, expression=place.dotted(name))
    yield from hooks_of(place, module, _HOOKS_OF_MODULES)


def _entry(holder: Any, name: str) -> Get:
    return lambda: object.__getattribute__(holder, "__dict__")[name]


def within_object(place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
    """Yield the parts of any other object: items of collections, attributes, and contents of built-in wrapper
    objects.
    """
    if isinstance(value, (dict, types.MappingProxyType, list, tuple, set, frozenset, deque)):
        yield from _items_of(place, value)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _within_optimizer(place, value)
    elif isinstance(value, _WRAPPERS):
        yield from _wrapped(place, value)
    elif type(value).__module__.startswith("multiprocessing"):
        if hasattr(type(value), "get_obj"):
            yield place.part("value", "shared value", lambda: bytes(value.get_obj()), holder="")
    elif isinstance(value, threading.local):
        for name in list(vars(value)):
            get = partial(_item, vars(value), name)
            yield place.part(name, "attribute of this thread", get, expression=place.dotted(name))
    else:
        for name in (name for name, _ in attributes_of(value) if is_telling_key(name)):
            yield place.part(name, "attribute", _read(value, name), expression=place.dotted(name))


_WRAPPERS = (
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
    weakref.ref,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    contextvars.ContextVar,
)


def _wrapped(place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
    if isinstance(value, types.MethodType):
        yield place.within(lambda: value.__self__, place.dotted("__self__"))
        yield place.within(lambda: value.__func__, place.dotted("__func__"))
    elif isinstance(value, functools.partial):
        for name in ("args", "keywords"):
            yield place.part(name, "argument", attribute(value, name), expression=place.dotted(name), holder="")
        yield place.within(lambda: value.func, place.dotted("func"))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield place.within(lambda: value.__wrapped__, place.dotted("__wrapped__"))
        is_only = value.cache_info().currsize == 1 and not needed_arguments(value.__wrapped__)
        call = f"{place.expression}()" if place.expression and is_only else ""
        for number, _ in enumerate(_cached_by(value)):
            get = partial(_item_of, _cached_by, value, number)
            name = f"cached{number or ''}"
            yield place.part(name, "cached result", get, expression=call, holder="")
    elif isinstance(value, weakref.ref):
        yield place.within(value, f"{place.expression}()" if place.expression else "")
    elif isinstance(value, contextvars.ContextVar):
        yield place._replace(what="context variable", get=value.get, outer=place)
    else:
        yield place.part("values", "item", lambda: list(value.values()), holder="")


def _cached_by(cache: Any) -> list[Any]:
    """Return the cached results of a function with a cache.

    Only Python's garbage collector interface gives access to the cached results.
    """
    referents = gc.get_referents(cache)
    tables = [found for found in referents if type(found) is dict]
    arguments = {id(key) for table in tables for key in table}
    held = [each for table in tables if "__wrapped__" not in table for each in table.values()]
    apart = [found for found in referents if type(found) is not dict]
    return [each for each in (*apart, *held) if id(each) not in arguments and _is_result(each)]


def _is_result(found: Any) -> bool:
    """Whether the object in a cache is a result, and not an internal object of the cache."""
    is_own = isinstance(found, (type, types.FunctionType, functools._lru_cache_wrapper)) or type(found) is object
    return not is_own and type(found).__name__ != "_lru_list_elem"


def _item_of(items: Callable[[Any], list[Any]], holder: Any, number: int) -> Any:
    return items(holder)[number]


def attributes_put_on(place: ValuePlace, tensor: torch.Tensor) -> Iterator[ValuePlace]:
    """Yield the attributes that the user's code has set on a tensor."""
    for name in list(vars(tensor)):
        if not name.startswith(("__", "_dynamo_")):
            yield place.part(name, "attribute", _entry(tensor, name), expression=place.dotted(name))


def is_torchs_own(value: Any) -> bool:
    """Whether the value belongs to private modules of torch, e.g. the compiler.

    The counts in private modules of torch differ in each process.
    """
    owner = value if isinstance(value, (type, types.FunctionType)) else type(value)
    return str(owner.__module__).startswith("torch._") and owner.__module__ != "torch._C"


def compiled_by_torch(place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
    """Return the original module of a module that torch has compiled."""
    if isinstance(value, nn.Module) and (compiled := vars(value)["_modules"].get("_orig_mod")) is not None:
        yield place.within(lambda: compiled, place.dotted("_orig_mod"))


def _items_of(place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
    if isinstance(value, (dict, types.MappingProxyType)):
        for number, key in enumerate(list(value)):
            is_plain = isinstance(key, (str, int))
            expression = f"{place.expression}[{key!r}]" if place.expression and is_plain else ""
            name = str(key) if is_plain else str(number)
            yield place.part(name, "item", partial(_item, value, key), expression=expression, holder="")
    elif isinstance(value, (set, frozenset)):
        for number, item in enumerate(list(value)):
            yield place.part(str(number), "item", lambda item=item: item, holder="")  # type: ignore[misc]
    else:
        for number in range(len(value)):
            expression = f"{place.expression}[{number}]" if place.expression else ""
            get = _item_again(place, number)
            yield place.part(str(number), "item", get, expression=expression, holder="")


def _item(holder: Any, key: Any) -> Any:
    return holder[key]


def _item_again(place: ValuePlace, number: int) -> Get:
    return lambda: place.get()[number]


def functions_within(place: ValuePlace, value: Any) -> Iterator[ValuePlace]:
    """Yield the functions in an object, for example the functions of a LambdaLR, and the hooks of the object."""
    for name, held in attributes_of(value):
        if name != "step" and (callable(held) or (isinstance(held, list) and any(map(callable, held)))):
            yield place.part(name, "attribute", _read(value, name), expression=place.dotted(name))
    yield from hooks_of(place, value, _HOOKS_OF_OPTIMIZERS)


def _read(value: Any, name: str) -> Get:
    def get() -> Any:
        return next(held for found, held in attributes_of(value) if found == name)

    def safe() -> Any:
        try:
            return get()
        except StopIteration:
            raise AttributeError(name) from None

    return safe


def _setting(optimizer: torch.optim.Optimizer, number: int, name: str) -> Get:
    return lambda: optimizer.param_groups[number][name]


_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)))
_OF_OPTIMIZERS |= {
    "step",
    "_params",
    "_numel_cache",
    "_opt_called",
    "_step_count",
    "_need_device_dtype_check_for_fused",
}
"""Attributes that the optimizers of torch set themselves, or that schedulers set."""


def _within_optimizer(place: ValuePlace, optimizer: torch.optim.Optimizer) -> Iterator[ValuePlace]:
    for number, _ in enumerate(optimizer.param_groups):
        group = f"param_groups.{number}"
        for name in optimizer.param_groups[number]:
            if name != "params":
                yield place.part(f"{group}.{name}", "setting", _setting(optimizer, number, name), holder="")
    for number, parameter in enumerate(list(optimizer.state)):
        yield place.part(f"state.{number}", "state", partial(optimizer.state.__getitem__, parameter), holder="")
    for name, _ in attributes_of(optimizer):
        if name not in _OF_OPTIMIZERS:
            yield place.part(name, "attribute", _entry(optimizer, name), expression=place.dotted(name))
    yield from hooks_of(place, optimizer, _HOOKS_OF_OPTIMIZERS)


def put_on_optimizer(place: ValuePlace, optimizer: torch.optim.Optimizer) -> Iterator[ValuePlace]:
    """Yield the attributes that the user set on an optimizer of torch and that are not in the optimizer's
    state_dict.
    """
    for name, _ in attributes_of(optimizer):
        if name not in _OF_OPTIMIZERS and not name.startswith("_") and name not in _OF_SCALERS:
            yield place.part(name, "attribute", _entry(optimizer, name), expression=place.dotted(name))


_OF_SCALERS = ("grad_scale", "found_inf")
