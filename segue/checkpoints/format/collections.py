"""Converts pandas tables, and collections other than lists, tuples and dicts, to plain data and back."""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from segue.checkpoints.format.constants import MOMENTS, is_constant
from segue.errors import UnsupportedStateError

Json = Any


class Fields(dict[str, Any]):
    """The attributes of an object, by name. `kind` is the name of the object's class, as `module:qualified.name`."""

    def __init__(self, kind: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.kind = kind


class Encode(Protocol):
    """Encodes the contents of a collection."""

    def __call__(self, tree: Any, *, path: str) -> Json: ...


COLLECTIONS = (Fields, Counter, deque, frozenset, bytearray, array, complex)
COLLECTION_TAGS = frozenset(
    {"object", "counter", "deque", "frozenset", "bytearray", "numbers", "complex", "items", "frame", "series"}
)
"""`frame` and `series` are the tags of tables. `items` is the tag of a dict with keys other than text and numbers."""
_TAG = "$"
_NUMBERS = "biufc"
"""Kind codes of the NumPy types that are numbers."""


def loaded_type(module: str, name: str) -> Any:
    """Return a type of a module for `isinstance`. The result is () if the module is not loaded.

    The result is also () while an import in another thread has not yet defined the type. No value of the type exists
    then.
    """
    return getattr(sys.modules.get(module), name, ())


def is_frame(value: Any) -> bool:
    """Whether the value is a DataFrame or a Series of pandas."""
    return isinstance(value, (loaded_type("pandas", "DataFrame"), loaded_type("pandas", "Series")))


def is_table(value: Any) -> bool:
    """Whether the value is a DataFrame, a Series or an Index of pandas."""
    return is_frame(value) or isinstance(value, loaded_type("pandas", "Index"))


def is_key(value: Any) -> bool:
    """Whether a checkpoint can store a dict with this key, which is neither text nor a number."""
    if isinstance(value, (tuple, frozenset)):
        return type(value) in (tuple, frozenset) and all(
            isinstance(it, (str, int, float)) or is_key(it) for it in value
        )
    return value is None or isinstance(value, (bytes, complex, np.generic)) or is_constant(value)


def encode_collection(tree: Any, *, path: str, encode: Encode) -> Json:
    """Return a collection as JSON. The items of the collection are encoded with `encode`.

    Raises:
        UnsupportedStateError: a value in the collection cannot be stored.
    """
    if isinstance(tree, Fields):
        return {f"{_TAG}object": [tree.kind, [[name, encode(it, path=f"{path}.{name}")] for name, it in tree.items()]]}
    if isinstance(tree, Counter):
        return {f"{_TAG}counter": encode([[*pair] for pair in tree.items()], path=path)}
    if isinstance(tree, complex):
        return {f"{_TAG}complex": repr(tree)}
    if isinstance(tree, deque):
        return {f"{_TAG}deque": [tree.maxlen, encode(list(tree), path=path)]}
    if isinstance(tree, frozenset):
        return {f"{_TAG}frozenset": encode(set(tree), path=path)}
    if isinstance(tree, bytearray):
        return {f"{_TAG}bytearray": base64.b64encode(tree).decode()}
    return {f"{_TAG}numbers": [tree.typecode, base64.b64encode(tree.tobytes()).decode()]}


def encode_frame(tree: Any, *, path: str, encode: Encode) -> Json:
    """Return a DataFrame or a Series of pandas as JSON. The columns are encoded with `encode`.

    Raises:
        UnsupportedStateError: a value in the table cannot be stored, or the labels have several levels.
    """
    pandas = sys.modules["pandas"]
    index = _encode_index(tree.index, path=path, encode=encode)
    if isinstance(tree, pandas.Series):
        return {f"{_TAG}series": [encode(tree.name, path=path), index, _encode_column(tree, path=path, encode=encode)]}
    labels = [encode(label, path=path) for label in _flat(tree.columns, path)]
    columns = [
        _encode_column(tree.iloc[:, number], path=f"{path}.{label}", encode=encode)
        for number, label in enumerate(tree.columns)
    ]
    return {f"{_TAG}frame": [labels, index, columns]}


def decode_collection(tag: str, value: Json, *, decode: Callable[[Json], Any]) -> Any:
    """Return the collection that `encode_collection` encoded."""
    match tag:
        case "object":
            return Fields(value[0], {name: decode(item) for name, item in value[1]})
        case "counter":
            return Counter(dict(decode(value)))
        case "items":
            return {decode(key): decode(item) for key, item in value}
        case "complex":
            return complex(value)
        case "deque":
            return deque(decode(value[1]), value[0])
        case "frozenset":
            return frozenset(decode(value))
        case "bytearray":
            return bytearray(base64.b64decode(value))
        case "numbers":
            return array(value[0], base64.b64decode(value[1]))
    return _decode_frame(tag, value, decode=decode)


def _decode_frame(tag: str, value: Json, *, decode: Callable[[Json], Any]) -> Any:
    import pandas

    index = _decode_index(value[1], decode=decode)
    if tag == "series":
        return _decode_column(value[2], decode=decode).set_axis(index).rename(decode(value[0]))
    columns = {number: _decode_column(each, decode=decode).set_axis(index) for number, each in enumerate(value[2])}
    frame = pandas.DataFrame(columns, index=index)
    frame.columns = pandas.Index([decode(label) for label in value[0]])
    return frame


def _flat(index: Any, path: str) -> Any:
    if index.nlevels > 1:
        raise UnsupportedStateError(path=path, type_name="table with several levels of labels", fix=_FLAT_FIX)
    return index


_FLAT_FIX = "register table.reset_index(), or the columns as arrays in a dict"


def _encode_index(index: Any, *, path: str, encode: Encode) -> Json:
    if isinstance(index, sys.modules["pandas"].RangeIndex):
        return ["range", encode(index.name, path=path), [index.start, index.stop, index.step]]
    return ["labels", encode(index.name, path=path), _encode_column(_flat(index, path), path=path, encode=encode)]


def _decode_index(value: Json, *, decode: Callable[[Json], Any]) -> Any:
    import pandas

    kind, name, content = value
    if kind == "range":
        start, stop, step = content
        return pandas.RangeIndex(start, stop, step, name=decode(name))
    return pandas.Index(_decode_column(content, decode=decode), name=decode(name))


def _encode_column(column: Any, *, path: str, encode: Encode) -> Json:
    """Encode a column, or the row labels. The result has the type, and the values as an array or a list."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in _NUMBERS:
        return [dtype.str, encode(np.array(column.to_numpy()), path=path)]
    if isinstance(dtype, np.dtype) and dtype.kind in MOMENTS:
        return [dtype.str, encode(np.array(column.to_numpy()).view(np.int64), path=path)]
    missing = column.isna() if hasattr(column, "isna") else [False] * len(column)
    values = [None if is_missing else value for value, is_missing in zip(column.tolist(), missing, strict=True)]
    return [str(dtype), encode(values, path=path)]


def _decode_column(value: Json, *, decode: Callable[[Json], Any]) -> Any:
    import pandas

    dtype, content = value[0], decode(value[1])
    if isinstance(content, np.ndarray):
        numpy_type = np.dtype(dtype)
        return pandas.Series(content.view(numpy_type) if numpy_type.kind in MOMENTS else content)
    return pandas.Series(content, dtype=dtype)
