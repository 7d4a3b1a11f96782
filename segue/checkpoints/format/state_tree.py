"""Converts state trees to tensors plus JSON and back, without pickle.

If the state contains an object that cannot be stored, the encoder raises an error with the path of the object.
"""

from __future__ import annotations

import base64
import math
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from segue.checkpoints.format.collections import (
    COLLECTION_TAGS,
    COLLECTIONS,
    decode_collection,
    encode_collection,
    encode_frame,
    is_frame,
    is_key,
)
from segue.checkpoints.format.constants import (
    CONSTANT_TAG,
    MOMENTS,
    decode_constant,
    encode_constant,
    is_constant,
    moment,
)
from segue.checkpoints.format.dtensor import sharded_types
from segue.checkpoints.format.layout import DTYPES, MOST_LEVELS
from segue.errors import UnsupportedStateError

Json = Any
"""A value that the json module can read and write."""

_STORABLE = frozenset(getattr(torch, name) for name in DTYPES)
_TAG = "$"
"""First character of the tag of an encoded value.

If a key of a user's dict has this first character, the encoder stores the dict as pairs of key and value.
"""

_FIX = "give the object a state_dict() that returns the inner tensors, or the values as one plain tensor"
_SCALARS = "biufcS"
"""Kind codes of the NumPy types whose single values can be stored."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_dtype_of = operator.attrgetter("dtype")
_layout_of = operator.attrgetter("layout")


def encode_tree(tree: Any, *, path: str, tensors: dict[str, torch.Tensor], level: int = 0) -> Json:
    """Return the JSON skeleton of a state tree. The tensors are added to `tensors` under their paths.

    The tensors are not copied. `level` is the depth of `tree` in the whole state tree.

    Raises:
        UnsupportedStateError: a value cannot be stored or is nested too deeply. The message has the path of the value.
    """
    if tree is None or isinstance(tree, bool):
        return tree
    if isinstance(tree, str):
        return tree if type(tree) is str else str.__str__(tree)  # A subclass of str, e.g. a member of an enumeration.
    if isinstance(tree, torch.Tensor):
        _refuse_unstorable(tree, path)
        return {f"{_TAG}tensor": _put(tree, path, tensors)}
    if isinstance(tree, np.ndarray):
        return _encode_array(tree, path=path, tensors=tensors)
    if isinstance(tree, np.generic):
        return _encode_scalar(tree, path=path)
    if isinstance(tree, (int, float, bytes)):
        return _encode_plain(tree)
    if level == MOST_LEVELS:
        raise UnsupportedStateError(path=path, type_name=f"{type(tree).__qualname__} inside {MOST_LEVELS} others")
    deeper = partial(encode_tree, tensors=tensors, level=level + 1)
    if isinstance(tree, COLLECTIONS):
        return encode_collection(tree, path=path, encode=deeper)
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, path=path, tensors=tensors, level=level)
    if type(tree) in (list, tuple, set):
        items = _in_order(tree, path=path) if isinstance(tree, set) else tree
        parts = ((f"{path}.{number}", item) for number, item in enumerate(items))
        encoded = [deeper(item, path=name) for name, item in parts]
        return encoded if isinstance(tree, list) else {f"{_TAG}{type(tree).__name__}": encoded}
    if is_frame(tree):
        return encode_frame(tree, path=path, encode=deeper)
    if is_constant(tree):
        return {f"{_TAG}{CONSTANT_TAG}": encode_constant(tree, path=path)}
    raise UnsupportedStateError(path=path, type_name=type(tree).__qualname__)


def _encode_scalar(value: np.generic, *, path: str) -> Json:
    if value.dtype.kind in MOMENTS:
        return {f"{_TAG}moment": [value.dtype.str, int(value.astype(np.int64))]}
    if value.dtype.kind not in _SCALARS or isinstance(value.item(), np.generic):  # E.g. a long double.
        raise UnsupportedStateError(path=path, type_name=type(value).__qualname__)
    return {f"{_TAG}scalar": [value.dtype.str, encode_tree(value.item(), path=path, tensors={})]}


def _encode_plain(value: float | bytes) -> Json:
    if isinstance(value, bytes):
        return {f"{_TAG}bytes": base64.b64encode(value).decode()}
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else {f"{_TAG}float": repr(float(value))}


def _refuse_unstorable(tensor: torch.Tensor, path: str) -> None:
    if is_made_of_others(tensor):
        raise UnsupportedStateError(path=path, type_name=f"tensor of the class {type(tensor).__name__}", fix=_FIX)
    if not is_storable(tensor):
        raise UnsupportedStateError(path=path, type_name=f"{tensor.layout} tensor of {tensor.dtype}")


def _in_order(items: set[Any], *, path: str) -> list[Any]:
    """Return the items of a set in an order that does not depend on the process."""
    for item in items:  # This must come first: the repr of an unsupported value may raise.
        encode_tree(item, path=path, tensors={})
    return sorted(items, key=repr)


def is_storable(tensor: torch.Tensor) -> bool:
    """Whether a checkpoint can store the tensor. The tensor must not be sparse, quantized or made of other tensors."""
    return tensor.dtype in _STORABLE and tensor.layout is torch.strided and not is_made_of_others(tensor)


def is_made_of_others(tensor: torch.Tensor) -> bool:
    """Whether the tensor wraps other tensors, from which its class computes the values.

    An example is a quantized weight. The result is False for a sharded tensor.
    """
    return hasattr(type(tensor), "__tensor_flatten__") and type(tensor) not in sharded_types()


def decode_tree(json_tree: Json, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state tree that `encode_tree` encoded.

    Raises:
        KeyError, ValueError: a tensor of the skeleton is missing, or a tag is unknown.
    """
    if isinstance(json_tree, list):
        return [decode_tree(item, tensors) for item in json_tree]
    if not isinstance(json_tree, dict):
        return json_tree
    if len(json_tree) != 1 or not next(iter(json_tree)).startswith(_TAG):
        return {key: decode_tree(value, tensors) for key, value in json_tree.items()}
    ((tag, value),) = json_tree.items()
    if tag == f"{_TAG}{CONSTANT_TAG}":
        return decode_constant(value)
    return _decode_tagged(tag.removeprefix(_TAG), value, tensors)


def _encode_array(array: np.ndarray[Any, Any], *, path: str, tensors: dict[str, torch.Tensor]) -> Json:
    if type(array) is not np.ndarray or not array.dtype.isnative:
        raise UnsupportedStateError(path=path, type_name=f"{type(array).__name__} of {array.dtype.str}")
    if array.dtype.kind in MOMENTS:
        numbers = torch.from_numpy(np.asarray(array, order="C").view(np.int64))
        return {f"{_TAG}moments": [array.dtype.str, _put(numbers, path, tensors)]}
    try:
        tensor = torch.from_numpy(np.asarray(array, order="C"))
    except TypeError:
        raise UnsupportedStateError(path=path, type_name=f"array of {array.dtype}") from None
    return {f"{_TAG}array": _put(tensor, path, tensors)}


def _put(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    while path in tensors:  # {"a.b": x, "a": {"b": y}} has one path twice.
        path += "'"
    tensors[path] = tensor
    return path


def _encode_mapping(tree: Mapping[Any, Any], *, path: str, tensors: dict[str, torch.Tensor], level: int) -> Json:
    if (many := _encode_tensors(tree, path, tensors)) is not None:
        return many
    strange = [key for key in tree if not isinstance(key, (str, int, float))]
    for key in strange:  # This must come first: the repr of an unsupported key may raise.
        if not is_key(key):
            raise UnsupportedStateError(path=path, type_name=f"dict with a {type(key).__qualname__} key")
    if strange:
        pairs = [[*pair] for pair in tree.items()]
        return {f"{_TAG}items": encode_tree(pairs, path=path, tensors=tensors, level=level + 1)}
    parts = ((key, f"{path}.{key}", value) for key, value in tree.items())
    encoded = [(key, encode_tree(value, path=name, tensors=tensors, level=level + 1)) for key, name, value in parts]
    if all(type(key) is str and not key.startswith(_TAG) for key in tree):
        return dict(encoded)
    return {f"{_TAG}pairs": [[key, value] for key, value in encoded]}


def _encode_tensors(tree: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> Json | None:
    """Return one node for a dict that has only plain tensors. Return None for any other dict.

    Most of a state consists of dicts that have only plain tensors. The code avoids Python operations for each tensor,
    because there may be thousands of tensors and training waits.
    """
    values = tree.values()
    if not tree or not (_PLAIN | sharded_types()).issuperset(map(type, values)) or set(map(type, tree)) != {str}:
        return None
    if not _STORABLE.issuperset(map(_dtype_of, values)) or set(map(_layout_of, values)) != {torch.strided}:
        return None
    paths = [f"{path}.{key}" for key in tree]
    if not tensors.keys().isdisjoint(paths):
        return None
    tensors.update(zip(paths, values, strict=True))
    return {f"{_TAG}tensors": [path, list(tree)]}


def _scalar(dtype: np.dtype[Any], value: Any) -> Any:
    # A NumPy void made from a number n would take n bytes of memory.
    if dtype.kind not in _SCALARS or not isinstance(value, bytes if dtype.kind == "S" else (bool, int, float, complex)):
        raise ValueError(f"{dtype.str!r} is not a type of a stored scalar")
    return dtype.type(value)


def _decode_tagged(tag: str, value: Json, tensors: Mapping[str, torch.Tensor]) -> Any:
    if tag in COLLECTION_TAGS:
        return decode_collection(tag, value, decode=lambda item: decode_tree(item, tensors))
    match tag:
        case "tensor":
            return tensors[value]
        case "tensors":
            path, keys = value
            return {key: tensors[f"{path}.{key}"] for key in keys}
        case "array":
            return tensors[value].numpy()
        case "scalar":
            return _scalar(np.dtype(value[0]), decode_tree(value[1], tensors))
        case "moment":
            return moment(*value)
        case "moments":
            return tensors[value[1]].numpy().view(moment(value[0], 0).dtype)
        case "float":
            return float(value)
        case "bytes":
            return base64.b64decode(value)
        case "tuple":
            return tuple(decode_tree(item, tensors) for item in value)
        case "set":
            return {decode_tree(item, tensors) for item in value}
        case "pairs":
            return {key: decode_tree(item, tensors) for key, item in value}
    raise ValueError(f"unknown tag {tag!r}")
