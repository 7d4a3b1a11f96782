"""Collects the values that the components of a run contain.

A value outside the components needs no registration if a component contains an equal value.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from segue.checkpoints.format.collections import Fields, is_table
from segue.checkpoints.format.dtensor import local_tensor
from segue.continuity.iterators import position_of
from segue.continuity.untracked.marks import ARRAYS, UNREADABLE, Mark, mark_of
from segue.continuity.untracked.place import Leaf
from segue.data.streams import STREAMS, state_of_stream

_MOST_ITEMS = 10_000


@dataclass
class Coverage:
    """The values of captured state trees, by component."""

    leaves: Iterable[Leaf] = ()
    """All values of the captured trees, by which the class recognizes the entries of a state_dict."""
    _places: set[int] = field(default_factory=set)
    """Memory addresses of all captured tensors and arrays."""
    _contents: list[Any] = field(default_factory=list)
    """Arrays and collections that the class has not indexed yet."""
    _unmarked: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """The indexed values, by properties that are known without reading the values' content.

    If two values have equal marks, they also have equal properties. Most marks are never computed, because the content
    of a value on a device takes long to read (about a second for gigabytes).
    """
    _marks: dict[Any, set[Mark]] = field(default_factory=lambda: defaultdict(set))
    _values: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    """The plain values, by component and name."""

    def __post_init__(self) -> None:
        self._known = {(leaf.root, _bare(leaf.path.rpartition(".")[2])) for leaf in self.leaves}

    def add(self, component: str, tree: Any) -> None:
        """Add the values that one component captured."""
        values = self._values.setdefault(component, {})
        # In the state of a model, the names and versions of modules are not values.
        is_model = isinstance(tree, Mapping) and tree.keys() >= {"state", "metadata"}
        for name, value in _nodes(tree["state"] if is_model else tree, ""):
            if isinstance(value, ARRAYS):
                self._places.add(_address(value))
            if isinstance(value, (*ARRAYS, *_COLLECTIONS)) or is_table(value):
                self._contents.append(value)
            values.setdefault(_bare(name), []).append(value)

    def has_memory_of(self, value: Any) -> bool:
        """Whether a component contains this tensor or array itself, in the same memory."""
        return isinstance(value, ARRAYS) and (_address(value) or -1) in self._places

    def holds(self, name: str, value: Any) -> bool:
        """Whether a component contains this value under this name, or an array or collection with equal content."""
        if isinstance(value, ARRAYS):
            return self._has_array(value)
        if isinstance(value, _COLLECTIONS):
            return bool(value) and (self._has_all_arrays_of(value) or self._has_content(value))
        if is_table(value):
            return self._has_content(value)
        named = (self._values.get(name, {}).values(), *([v.get(_bare(name), ())] for v in self._values.values()))
        same = (held for values in named for each in values for held in each if type(held) is type(value))
        # Marks are compared, because `==` may call the user's code or not return a truth value.
        return (mark := mark_of(value)) != UNREADABLE and any(mark_of(held) == mark for held in same)

    def has(self, leaf: Leaf, value: Any) -> bool:
        """Whether a component contains this value.

        The component may contain the same memory, or equal content, or the value as an entry of a state_dict.
        """
        if isinstance(value, STREAMS):
            return self._has_content(state_of_stream(value))
        if (position := position_of(value)) is not None:
            name = leaf.path.rpartition(".")[2]
            held = (it for key in ("", _bare(name)) for it in self._values.get(leaf.root, {}).get(key, ()))
            return any(isinstance(it, Fields) and it.get("position") == position for it in held)
        captured, name = self._values.get(leaf.root, {}), _bare(leaf.path.rpartition(".")[2])
        if self._has_array(value) or (_is_of_root(leaf) and any(_is_entry(it, value) for it in captured.get(name, ()))):
            return True
        if is_table(value):
            return self._has_content(value)
        if isinstance(value, _COLLECTIONS):
            return self._has_all_arrays_of(value) or self._has_content(value)
        if not isinstance(value, (int, float, str, bytes)) or isinstance(value, bool) or value in (0, 1):
            return False  # Such common values may be equal to others by chance.
        if not leaf.root.startswith("extra."):
            return False
        # The component may use another name for the value, but not the name of another value.
        others = (held for other, held in captured.items() if (leaf.root, other) not in self._known)
        return any(type(found) is type(value) and found == value for held in others for found in held)

    def _has_array(self, value: Any) -> bool:
        return self.has_memory_of(value) or (isinstance(value, ARRAYS) and self._has_content(value))

    def _has_content(self, value: Any) -> bool:
        for held in self._contents:
            self._unmarked[_form(held)].append(held)
        self._contents = []
        form = _form(value)
        for held in self._unmarked.pop(form, ()):
            self._marks[form].add(mark_of(dict(held) if isinstance(held, Mapping) else held))
        return form in self._marks and mark_of(value) in self._marks[form]

    def _has_all_arrays_of(self, collection: Any) -> bool:
        """Whether the components contain all arrays of a collection, in any type of collection."""
        items = list(collection.values() if isinstance(collection, Mapping) else collection)[:_MOST_ITEMS]
        return bool(items) and all(map(self._has_array, items))


_OF_OBJECTS = frozenset({"", "attribute", "attribute of this thread", "item", "setting", "state"})
"""The types of variables that belong to an object itself.

A value that only the object's code reaches, e.g. a variable of a hook, is not in the object's state_dict.
"""


def _is_of_root(leaf: Leaf) -> bool:
    """Whether a value is inside its root object, so that the root's state_dict may contain the value."""
    place = leaf.at
    while place is not None and place.what in _OF_OBJECTS:
        place = place.outer
    return place is None


def _is_entry(held: Any, value: Any) -> bool:
    """Whether an entry of a state_dict may be the given value.

    An entry of another type also counts, because it may be the value in another form.
    """
    if type(held) is not type(value) or not isinstance(value, _COMPARED):
        return True
    return mark_of(held) == mark_of(value)


_COMPARED = (bool, int, float, str, torch.Tensor, np.ndarray, list, tuple)
_COLLECTIONS = (Mapping, list, tuple, set, frozenset, deque)


def _form(value: Any) -> Any:
    """Return the properties of a value that are known without reading its content.

    Two values with equal marks have equal properties.
    """
    if isinstance(value, torch.Tensor):
        tensor = local_tensor(value)
        return str(tensor.dtype), tuple(tensor.shape)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, "numpy"
    if isinstance(value, (bytes, bytearray, memoryview, array)):
        return "bytes", memoryview(value).nbytes
    if isinstance(value, (Mapping, set, frozenset)):
        return "by name", len(value)
    return ("in order", len(value)) if isinstance(value, (list, tuple, deque)) else "other"


def _nodes(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all values of a state tree with their names. A collection comes before its items."""
    yield name, tree
    if isinstance(tree, Mapping):
        for key, value in list(tree.items())[:_MOST_ITEMS]:
            yield from _nodes(value, str(key))
    elif isinstance(tree, (list, tuple, deque)):
        for value in islice(tree, _MOST_ITEMS):
            yield from _nodes(value, name)


def _bare(name: str) -> str:
    return name.lstrip("_").lower()


def _address(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        tensor = local_tensor(value)
        is_dense = tensor.layout is torch.strided and tensor.device.type != "meta"
        return tensor.untyped_storage().data_ptr() if is_dense else 0
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return 0
