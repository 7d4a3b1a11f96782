"""Converts live values to trees of data, and puts trees back into the same live objects.

Objects are changed in place, so that all code that shares an object sees the change.
"""

from __future__ import annotations

import contextvars
import logging
import re
import sys
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from enum import Enum
from typing import Any

import numpy as np
import torch

from segue.checkpoints.format.collections import Fields, is_frame
from segue.checkpoints.format.constants import CONSTANTS
from segue.continuity.iterators import draw_until, is_iterator, position_of
from segue.continuity.object_walk import PLAIN, attributes_of
from segue.data.streams import STREAMS, set_state_of_stream, state_of_stream
from segue.errors import UnsupportedStateError
from segue.user_objects import has
from segue.user_objects.variables import CODE, Variables, is_registrable, is_users_class

_ABSENT: Any = object()
_AS_THEY_ARE: tuple[type, ...] = (*PLAIN, *CONSTANTS, complex, np.generic, torch.Tensor, np.ndarray, bytearray, array)
_NO_STATE = (*CODE, torch.device, torch.dtype, logging.Logger, re.Pattern)
"""Attributes that are neither saved nor restored, because they are code or settings."""
_ITERATOR = "iterator"
_ITERATOR_FIX = "register an object with __next__ that keeps its changing values in attributes"
_DEEPEST = 30
_OBJECT_FIX = (
    "give the class state_dict() and load_state_dict(state), or register the variables that training changes: "
    'segue.Variables(object, "name")'
)


def tree_of(value: Any, *, path: str, depth: int = 0) -> Any:
    """Return the value as a tree of data, without a copy of tensors and arrays.

    Raises:
        UnsupportedStateError: a part of the value is not data and has no state_dict. The message contains the path of
            the part.
    """
    if depth > _DEEPEST:
        raise UnsupportedStateError(path=path, type_name=f"{type(value).__qualname__} that holds itself")
    if isinstance(value, Enum):
        return Fields(_name_of(type(value)), {"name": value.name})
    if isinstance(value, _AS_THEY_ARE) or is_frame(value):
        return value
    if isinstance(value, STREAMS):
        return state_of_stream(value)
    if is_iterator(value):
        if (position := position_of(value)) is None:
            raise UnsupportedStateError(path=path, type_name=type(value).__qualname__, fix=_ITERATOR_FIX)
        return Fields(_ITERATOR, {"position": position})
    if isinstance(value, Variables):
        found = {name: value.get(name, _ABSENT) for name in value.names}
        return _within({name: held for name, held in found.items() if held is not _ABSENT}, path, depth)
    if isinstance(value, contextvars.ContextVar):
        return _within({"value": value.get()}, path, depth)
    if has(value, "state_dict", "load_state_dict"):
        return value.state_dict()
    if isinstance(value, Mapping):
        held = _within(value, path, depth)
        return Counter(held) if isinstance(value, Counter) else held
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return _tree_of_items(value, path, depth)
    if not is_registrable(value):
        raise UnsupportedStateError(path=path, type_name=type(value).__qualname__, fix=_OBJECT_FIX)
    fields = {name: held for name, held in _attributes_of(value) if not isinstance(held, _NO_STATE)}
    return Fields(_name_of(type(value)), _within(fields, path, depth))


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    return iter([*vars(value).items()]) if isinstance(value, threading.local) else attributes_of(value)


def _within(held: Mapping[Any, Any], path: str, depth: int) -> dict[Any, Any]:
    return {key: tree_of(each, path=f"{path}.{_shown(key)}", depth=depth + 1) for key, each in [*held.items()]}


def _shown(key: Any) -> Any:
    return key if isinstance(key, (str, int, float)) else type(key).__qualname__


def _tree_of_items(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = dict(zip(value._fields, value, strict=True))
        return Fields(_name_of(type(value)), _within(named, path, depth))
    items = [tree_of(each, path=f"{path}.{number}", depth=depth + 1) for number, each in enumerate([*value])]
    if isinstance(value, deque):
        return deque(items, value.maxlen)
    if isinstance(value, (set, frozenset)):
        # Fields of objects cannot be hashed, so such a set gets its own message.
        if any(isinstance(each, Fields) for each in items):
            raise UnsupportedStateError(path=path, type_name="set of objects", fix="keep them in a list")
        return frozenset(items) if isinstance(value, frozenset) else set(items)
    return tuple(items) if isinstance(value, tuple) else items


def put(live: Any, saved: Any) -> Any:
    """Put a tree from `tree_of` into the live value, and return the resulting value.

    If the live value can be changed in place, the result is the live value. Otherwise it is a new value.
    """
    if _put_by_its_own_way(live, saved):
        return live
    if isinstance(saved, Fields):
        return _put_object(live, saved)
    if isinstance(saved, (torch.Tensor, np.ndarray)):
        return _put_array(live, saved)
    if isinstance(saved, Mapping):
        return _put_mapping(live, saved)
    if isinstance(saved, (list, tuple, deque)):
        return _put_items(live, saved)
    if is_frame(saved) and type(live) is type(saved):
        type(live).__init__(live, saved)  # The content is replaced; the table stays the same object.
    elif isinstance(saved, set) and isinstance(live, set):
        live.clear()
        live.update(saved)
    elif isinstance(saved, (bytearray, array)) and type(live) is type(saved):
        live[:] = saved  # type: ignore[assignment]
    else:
        return saved
    return live


def _put_by_its_own_way(live: Any, saved: Any) -> bool:
    """Restore a value that is neither an array nor a collection, e.g. an RNG stream or an object with load_state_dict.
    Return whether the value was restored."""
    if isinstance(live, STREAMS):
        set_state_of_stream(live, saved)
    elif isinstance(saved, Fields) and saved.kind == _ITERATOR:
        if position_of(live) is None:
            raise UnsupportedStateError(path=_ITERATOR, type_name="iterator that this process did not create")
        draw_until(live, saved["position"])
    elif isinstance(live, Variables):
        for name, value in saved.items():
            live.set(name, put(live.get(name), value))
    elif isinstance(live, contextvars.ContextVar):
        live.set(put(live.get(None), saved["value"]))
    elif not isinstance(saved, Fields) and has(live, "state_dict", "load_state_dict"):
        live.load_state_dict(saved)
    else:
        return False
    return True


def _put_array(live: Any, saved: Any) -> Any:
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        if saved.device.type not in ("cpu", live.device.type):
            return saved  # The saved tensor is already on the right device.
        if live.shape != saved.shape or live.dtype != saved.dtype or live.layout is not torch.strided:
            return saved.to(live.device)
        with torch.no_grad():
            return live.copy_(saved)
    if not isinstance(live, np.ndarray) or not isinstance(saved, np.ndarray):
        return saved
    if live.shape != saved.shape or live.dtype != saved.dtype or not live.flags.writeable:
        return saved
    live[...] = saved
    return live


def _put_mapping(live: Any, saved: Mapping[Any, Any]) -> Any:
    if not isinstance(live, MutableMapping):
        return {key: put(None, value) for key, value in saved.items()}
    makes = live.default_factory if isinstance(live, defaultdict) else None
    held = {key: put(live[key] if key in live else makes() if makes else None, each) for key, each in saved.items()}
    live.clear()
    live.update(held)
    return live


def _put_items(live: Any, saved: Any) -> Any:
    is_ordered = isinstance(live, (list, tuple, deque))
    # Items that were added after the save are like the last existing item, as in a list of objects of one class.
    now = list(live) if is_ordered else []
    items = [put(now[number] if number < len(now) else None, each) for number, each in enumerate(saved)]
    if isinstance(live, list) and isinstance(saved, list):
        live[:] = items
        return live
    if isinstance(live, deque) and isinstance(saved, deque) and live.maxlen == saved.maxlen:
        live.clear()
        live.extend(items)
        return live
    if isinstance(live, tuple) and len(items) == len(live) and all(map(_is_same, items, live)):
        return live
    return deque(items, saved.maxlen) if isinstance(saved, deque) else type(saved)(items)


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _put_object(live: Any, saved: Fields) -> Any:
    kind = type(live) if _name_of(type(live)) == saved.kind else _class_of(saved.kind)
    if kind is None:
        raise UnsupportedStateError(path=saved.kind, type_name="new object of this class", fix=_CLASS_FIX)
    if issubclass(kind, Enum):
        return kind[saved["name"]]
    if issubclass(kind, tuple):
        old = live if isinstance(live, kind) else (None,) * len(saved)
        items = [put(*pair) for pair in zip(old, saved.values(), strict=True)]
        is_same = isinstance(live, kind) and all(map(_is_same, items, live))
        return live if is_same else tuple.__new__(kind, items)
    target = live if isinstance(live, kind) else object.__new__(kind)
    before = dict(_attributes_of(target))
    for name in before.keys() - saved.keys():
        if not isinstance(before[name], _NO_STATE):
            object.__delattr__(target, name)
    for name, value in saved.items():
        new = put(before.get(name), value)
        if isinstance(target, threading.local):
            setattr(target, name, new)
        else:
            object.__setattr__(target, name, new)  # This works for a frozen class too.
    return target


_CLASS_FIX = "define the class at the top level of its module, so that a resume finds it"


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_of(name: str) -> type | None:
    """Return the loaded class of this name, if its objects contain data.

    The function imports no module and calls no code of the class.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
    is_data = isinstance(found, type) and (issubclass(found, (Enum, tuple)) or is_users_class(found))
    return found if is_data else None


def parts_held(value: Any, *, depth: int = 0) -> Iterator[Any]:
    """Yield the value itself, and the objects and collections inside it that are restored in place."""
    yield value
    if depth > _DEEPEST or isinstance(value, (*_AS_THEY_ARE, *STREAMS)) or is_frame(value):
        return
    if has(value, "state_dict", "load_state_dict") or is_iterator(value):
        return
    if isinstance(value, Variables):
        inner: Any = [value.get(name) for name in value.names]
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        inner = value
    else:
        inner = (held for _, held in _attributes_of(value) if not isinstance(held, _NO_STATE))
    for each in [*inner]:
        yield from parts_held(each, depth=depth + 1)
