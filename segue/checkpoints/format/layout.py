"""Defines the layout of a shard file.

A shard file has the format of safetensors: an 8-byte length, a JSON header, then the tensors without gaps. The header
is padded so that the tensors begin at a memory page. The bytes are the same in memory, on disk and in a bucket. A shard
file can therefore be filled by plain copies, written with O_DIRECT, and uploaded and read in chunks. This module does
not import torch.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segue.errors import StateTooLargeError

PAGE_BYTES = 4096
LENGTH_BYTES = 8
"""Size in bytes of the length field at the start of a shard file."""
MAX_HEADER_BYTES = 100_000_000
"""Largest header in bytes that the safetensors library reads."""
MOST_TENSORS = 1_000_000
MOST_LEVELS = 100
"""Maximum number of levels in the state tree of a component.

The code reads the tree by recursion, so the number of levels needs a limit. The JSON of the tree has at most three
times as many levels as the tree.
"""

DTYPES: Mapping[str, tuple[str, int]] = {
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "complex64": ("C64", 8),
    "float32": ("F32", 4),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "bool": ("BOOL", 1),
}
"""Maps the torch name of each element type to the safetensors code and the size of one element in bytes."""

_MOST_ELEMENTS = 2**60
_NAMES = {code: name for name, (code, _) in DTYPES.items()}


class TensorSpec(NamedTuple):
    """The type and shape of a tensor, without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


class Placed(NamedTuple):
    """A tensor and the position of its bytes in the shard file."""

    spec: TensorSpec
    start: int
    size_bytes: int


class TensorSlice(NamedTuple):
    """The position of a slice in a larger tensor: the larger tensor's name and shape, and the offsets of the slice."""

    tensor: str
    shape: tuple[int, ...]
    """The shape of the larger tensor."""
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class ShardLayout:
    """The positions of all tensors in one shard file."""

    head: bytes
    placed: Mapping[str, Placed]
    size_bytes: int
    slices: Mapping[str, TensorSlice] = field(default_factory=dict)
    """For each tensor that is a slice: the position of the slice in the larger tensor.

    The index stores these positions. The shard file does not contain them.
    """


class MalformedShardError(ValueError):
    """The bytes are not a shard file."""


def layout_of(specs: Mapping[str, TensorSpec]) -> ShardLayout:
    """Return a layout in which the tensors follow each other, starting with the tensors of the widest elements.

    This order aligns each tensor to its element size. Tensors of equal element size keep the given order, which is
    usually their order in memory.

    Raises:
        StateTooLargeError: a shard file with this layout could not be read back.
    """
    _refuse_unreadable(specs)
    order = sorted(specs, key=lambda name: -DTYPES[specs[name].dtype][1])
    header, offsets, end = {}, {}, 0
    for name in order:
        spec = specs[name]
        offsets[name] = start, end = end, end + spec.size_bytes
        header[name] = {"dtype": DTYPES[spec.dtype][0], "shape": spec.shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    base = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES
    if base - 8 > MAX_HEADER_BYTES:
        what, fix = "size in bytes of the tensors' names and shapes", "merge small tensors, or use shorter names."
        raise StateTooLargeError(what=what, found=base - 8, most=MAX_HEADER_BYTES, fix=fix)
    head = (base - 8).to_bytes(8, "little") + text.ljust(base - 8)
    placed = {name: Placed(specs[name], base + start, stop - start) for name, (start, stop) in offsets.items()}
    return ShardLayout(head=head, placed=placed, size_bytes=base + end)


def head_bytes(shard_file: memoryview) -> int:
    """Return the size in bytes of the length field plus the header of a shard file.

    The size is read from the first `LENGTH_BYTES` bytes.

    Raises:
        MalformedShardError: the file is shorter than the size of the length field and the header.
    """
    length = int.from_bytes(shard_file[:LENGTH_BYTES], "little")
    if len(shard_file) < LENGTH_BYTES or length > min(len(shard_file) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise MalformedShardError(f"its header of {length} bytes does not fit into {len(shard_file)}")
    return LENGTH_BYTES + length


def read_layout(shard_file: memoryview) -> ShardLayout:
    """Return the layout in the header of a shard file, after a check that the tensors neither overlap nor leave gaps.

    The function reads only the first `head_bytes` bytes.

    Raises:
        MalformedShardError: the file is not a valid safetensors file.
    """
    base, size_bytes = head_bytes(shard_file), len(shard_file)
    try:
        header = json.loads(bytes(shard_file[LENGTH_BYTES:base]), object_pairs_hook=_without_doubles)
        _check_metadata(header.pop("__metadata__", {}))
        found = [(name, *_entry(item)) for name, item in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedShardError(f"its header cannot be read ({error!r})") from None
    _check_tiling(((start, stop) for _, _, start, stop in found), total_bytes=size_bytes - base)
    placed = {name: Placed(spec, base + start, stop - start) for name, spec, start, stop in found}
    return ShardLayout(head=bytes(shard_file[:base]), placed=placed, size_bytes=size_bytes)


def _refuse_unreadable(specs: Mapping[str, TensorSpec]) -> None:
    if len(specs) > MOST_TENSORS:
        fix = "merge small tensors."
        raise StateTooLargeError(what="tensors of the state", found=len(specs), most=MOST_TENSORS, fix=fix)
    for name, spec in specs.items():
        if (elements := _elements(spec.shape)) > _MOST_ELEMENTS:
            what, fix = f"elements in the shape of {name}", "give this empty tensor another shape."
            raise StateTooLargeError(what=what, found=elements, most=_MOST_ELEMENTS, fix=fix)


def _elements(shape: Iterable[int]) -> int:
    """Return the product of all dimensions. A dimension of 0 counts as 1."""
    return math.prod(max(number, 1) for number in shape)


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TypeError("its __metadata__ is not a table of strings")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(item: dict[str, object]) -> tuple[TensorSpec, int, int]:
    shape, offsets = item["shape"], item["data_offsets"]
    if (
        item.keys() != {"dtype", "shape", "data_offsets"}
        or not isinstance(shape, list)
        or not isinstance(offsets, list)
    ):
        raise TypeError("the fields of an entry are not dtype, shape and data_offsets")
    if not {int}.issuperset(map(type, (*shape, *offsets))) or min(*shape, *offsets) < 0:
        raise ValueError("a size or offset is not a whole number")
    spec, size_bytes = _spec_of(str(item["dtype"]), tuple(shape))
    start, stop = offsets
    if stop - start != size_bytes:
        raise ValueError("a tensor's byte range does not match its shape")
    return spec, start, stop


@functools.lru_cache(maxsize=1024)  # Most of ten thousand tensors have the shape of another.
def _spec_of(code: str, shape: tuple[int, ...]) -> tuple[TensorSpec, int]:
    if _elements(shape) > _MOST_ELEMENTS:
        raise ValueError("a shape is larger than the largest tensor")
    spec = TensorSpec(_NAMES[code], shape)
    return spec, spec.size_bytes


def _check_tiling(ranges: Iterable[tuple[int, int]], *, total_bytes: int) -> None:
    end = 0
    for start, stop in sorted(ranges):
        if start != end:
            raise MalformedShardError(f"byte {min(start, end)} of its data belongs to no tensor or to two")
        end = stop
    if end != total_bytes:
        raise MalformedShardError(f"{total_bytes - end} bytes of its data belong to no tensor")
