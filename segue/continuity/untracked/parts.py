"""What the objects of a recipe directly lead to, each part with its place. Nothing of the user's is called."""

from __future__ import annotations

import contextvars
import functools
import gc
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

from segue.continuity.object_walk import attributes_of, settings_of
from segue.continuity.untracked.place import MODULE_VARIABLE, Get, Place
from segue.user_objects import default_arguments

_LIFE_CYCLE = ("__init__", "__call__", "__getitem__", "__getitems__", "__iter__", "__next__", "__len__", "__enter__")
"""Special methods whose code is followed like that of others."""


def attribute(holder: Any, name: str) -> Get:
    return lambda: getattr(holder, name)


def defaults_of(place: Place, function: types.FunctionType) -> Iterator[Place]:
    """The default arguments and the attributes of a function."""
    for name in default_arguments(function):
        yield place.part(name, "default argument", lambda name=name: default_arguments(function)[name])  # type: ignore[misc]
    for name in vars(function):
        yield place.part(name, "function attribute", lambda name=name: vars(function)[name])  # type: ignore[misc]


def module_variable(module: str, name: str, known: dict[str, Any]) -> Place:
    return Place(f"{module}.{name}", MODULE_VARIABLE, lambda: known[name])


def within_class(owner: type) -> Iterator[Place]:
    """The attributes and methods of a class of the user's, and what it inherits."""
    if issubclass(owner, Enum):
        return
    start = f"{owner.__module__}.{owner.__qualname__}"
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and name not in _LIFE_CYCLE:
            continue
        function = _function_of(value)
        if function is not None:
            yield Place(f"{start}.{name}", "method", lambda function=function: function)  # type: ignore[misc]
        elif not _is_descriptor(value):
            yield Place(f"{start}.{name}", "class attribute", _of_class(owner, name))
    yield from (Place(start, "class", lambda base=base: base) for base in owner.__mro__[1:])  # type: ignore[misc]


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


def hooks_of(place: Place, holder: Any, names: Iterable[str]) -> Iterator[Place]:
    for name in names:
        hooks = getattr(holder, name, None)
        for number, hook in enumerate(list(hooks.values()) if isinstance(hooks, dict) else ()):
            yield place.code().part(f"hook{number or ''}", "hook", lambda hook=hook: hook)  # type: ignore[misc]


_HOOKS_OF_MODULES = tuple(name for name in vars(nn.Module()) if "hooks" in name)
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def within_module(place: Place, module: nn.Module) -> Iterator[Place]:
    for name, _ in settings_of(module):
        yield place.part(name, "attribute", _entry(module, name))
    for group in ("_parameters", "_buffers", "_modules"):
        held = vars(module)[group]
        for name in held:
            yield place.part(name, "attribute", lambda held=held, name=name: held[name])  # type: ignore[misc]
    yield from hooks_of(place, module, _HOOKS_OF_MODULES)


def _entry(holder: Any, name: str) -> Get:
    return lambda: object.__getattribute__(holder, "__dict__")[name]


def within_object(place: Place, value: Any) -> Iterator[Place]:
    """The parts of any other object: items of collections, attributes, and what wrappers of Python's own wrap."""
    if isinstance(value, (dict, types.MappingProxyType, list, tuple, set, frozenset, deque)):
        yield from _items_of(place, value)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _within_optimizer(place, value)
    elif isinstance(value, _WRAPPERS):
        yield from _wrapped(place, value)
    elif type(value).__module__.startswith("multiprocessing"):
        if hasattr(type(value), "get_obj"):
            yield place.part("value", "shared value", lambda: bytes(value.get_obj()))
    elif isinstance(value, threading.local):
        for name in list(vars(value)):
            yield place.part(name, "attribute of this thread", lambda name=name: vars(value)[name])  # type: ignore[misc]
    else:
        for name, _ in attributes_of(value):
            yield place.part(name, "attribute", _read(value, name))


_WRAPPERS = (
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
    weakref.ref,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    contextvars.ContextVar,
)


def _wrapped(place: Place, value: Any) -> Iterator[Place]:
    if isinstance(value, types.MethodType):
        yield place._replace(get=lambda: value.__self__)
        yield place._replace(get=lambda: value.__func__)
    elif isinstance(value, functools.partial):
        yield from (place.part(name, "argument", attribute(value, name)) for name in ("args", "keywords"))
        yield place._replace(get=lambda: value.func)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield place._replace(get=lambda: value.__wrapped__)
        for number, _ in enumerate(_cached_by(value)):
            yield place.part(f"cached{number or ''}", "cached result", partial(_item_of, _cached_by, value, number))
    elif isinstance(value, weakref.ref):
        yield place._replace(get=value)
    elif isinstance(value, contextvars.ContextVar):
        yield place._replace(what="context variable", get=value.get)
    else:
        yield place.part("values", "item", lambda: list(value.values()))


def _cached_by(cache: Any) -> list[Any]:
    """The results that a function with a cache keeps. Python shows them only to its garbage collector."""
    referents = gc.get_referents(cache)
    held = [each for inner in referents if type(inner) is dict and inner is not vars(cache) for each in inner.values()]
    return [
        each for each in (*referents, *held) if hasattr(type(each), "__dict__") and not isinstance(each, _OF_CACHES)
    ]


_OF_CACHES = (type, types.FunctionType, functools._lru_cache_wrapper)


def _item_of(items: Callable[[Any], list[Any]], holder: Any, number: int) -> Any:
    return items(holder)[number]


def attributes_put_on(place: Place, tensor: torch.Tensor) -> Iterator[Place]:
    """Attributes that somebody has put on a tensor."""
    for name in list(vars(tensor)):
        if not name.startswith(("__", "_dynamo_")):
            yield place.part(name, "attribute", _entry(tensor, name))


def is_torchs_own(value: Any) -> bool:
    """Whether it is of torch's private modules, such as its compiler: each process has its own counts and settings."""
    owner = value if isinstance(value, (type, types.FunctionType)) else type(value)
    return str(owner.__module__).startswith("torch._") and owner.__module__ != "torch._C"


def compiled_by_torch(place: Place, value: Any) -> Iterator[Place]:
    """The module from which torch has compiled this one."""
    if isinstance(value, nn.Module) and (compiled := vars(value)["_modules"].get("_orig_mod")) is not None:
        yield place._replace(get=lambda: compiled)


def _items_of(place: Place, value: Any) -> Iterator[Place]:
    if isinstance(value, (dict, types.MappingProxyType)):
        for number, key in enumerate(list(value)):
            name = str(key) if isinstance(key, (str, int)) else str(number)
            yield place.part(name, "item", lambda key=key: place.get()[key])  # type: ignore[misc]
    elif isinstance(value, (set, frozenset)):
        for number, item in enumerate(list(value)):
            yield place.part(str(number), "item", lambda item=item: item)  # type: ignore[misc]
    else:
        for number in range(len(value)):
            yield place.part(str(number), "item", lambda number=number: place.get()[number])  # type: ignore[misc]


def functions_within(place: Place, value: Any) -> Iterator[Place]:
    """The functions that an object holds, such as those of a LambdaLR, and its hooks."""
    for name, held in attributes_of(value):
        if name != "step" and (callable(held) or (isinstance(held, list) and any(map(callable, held)))):
            yield place.part(name, "attribute", _read(value, name))
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
"""What torch's optimizers keep themselves; schedulers put some of it there."""


def _within_optimizer(place: Place, optimizer: torch.optim.Optimizer) -> Iterator[Place]:
    for number, _ in enumerate(optimizer.param_groups):
        group = f"param_groups.{number}"
        for name in optimizer.param_groups[number]:
            if name != "params":
                yield place.part(f"{group}.{name}", "setting", _setting(optimizer, number, name))
    for number, parameter in enumerate(list(optimizer.state)):
        yield place.part(f"state.{number}", "state", partial(optimizer.state.__getitem__, parameter))
    for name, _ in attributes_of(optimizer):
        if name not in _OF_OPTIMIZERS:
            yield place.part(name, "attribute", _entry(optimizer, name))
    yield from hooks_of(place, optimizer, _HOOKS_OF_OPTIMIZERS)
