"""A shard's layout: one safetensors file, placed so that memory, disk and bucket hold the same bytes. No torch here.

The format is safetensors' (an 8-byte length, a JSON header, then the tensors without holes), with the header padded
so that the tensors begin on a page: the same image can then be filled by plain copies, written with O_DIRECT,
uploaded in parts and read back in parts.
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
"""Of the header's length, which an image begins with."""
MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library reads at most."""
MOST_TENSORS = 1_000_000

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
"""torch's name of an element type -> safetensors' code and the bytes of one element."""

_MOST_ELEMENTS = 2**60
_NAMES = {code: name for name, (code, _) in DTYPES.items()}


class TensorSpec(NamedTuple):
    """What a tensor is, without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


class Placed(NamedTuple):
    """A tensor and where in the image its bytes lie."""

    spec: TensorSpec
    start: int
    size_bytes: int


class TensorSlice(NamedTuple):
    """Of which larger tensor something is a part, and where in it that begins."""

    tensor: str
    shape: tuple[int, ...]
    """Of the larger one."""
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class ShardLayout:
    """Where everything lies in one image."""

    head: bytes
    placed: Mapping[str, Placed]
    size_bytes: int
    pieces: Mapping[str, TensorSlice] = field(default_factory=dict)
    """Those that are not whole tensors. The image does not say so itself."""


class MalformedShardError(ValueError):
    """The bytes are not an image."""


def layout_of(specs: Mapping[str, TensorSpec]) -> ShardLayout:
    """Place tensors one after the other, those with wide elements first, so that each is aligned to its own.

    Otherwise in the order in which they came, which is as a rule that of their memory.

    Raises:
        StateTooLargeError: nobody could read back what is laid out like that.
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
        what, fix = "bytes of the tensors' names and shapes", "Put small tensors together, or name them shorter."
        raise StateTooLargeError(what=what, found=base - 8, most=MAX_HEADER_BYTES, fix=fix)
    head = (base - 8).to_bytes(8, "little") + text.ljust(base - 8)
    placed = {name: Placed(specs[name], base + start, stop - start) for name, (start, stop) in offsets.items()}
    return ShardLayout(head=head, placed=placed, size_bytes=base + end)


def head_bytes(image: memoryview) -> int:
    """How far into an image one must read to know its layout, from its first `LENGTH_BYTES`.

    Raises:
        MalformedShardError: not so far as it says.
    """
    length = int.from_bytes(image[:LENGTH_BYTES], "little")
    if len(image) < LENGTH_BYTES or length > min(len(image) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise MalformedShardError(f"its header of {length} bytes does not fit into {len(image)}")
    return LENGTH_BYTES + length


def read_layout(image: memoryview) -> ShardLayout:
    """The layout that an image says it has, checked: nothing overlaps, and nothing is outside or left over.

    Only the first `head_bytes` of it are looked at.

    Raises:
        MalformedShardError: it is not a safetensors file in every point.
    """
    base, size_bytes = head_bytes(image), len(image)
    try:
        header = json.loads(bytes(image[LENGTH_BYTES:base]), object_pairs_hook=_without_doubles)
        _check_metadata(header.pop("__metadata__", {}))
        found = [(name, *_entry(item)) for name, item in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedShardError(f"its header cannot be read ({error!r})") from None
    _check_tiling(((start, stop) for _, _, start, stop in found), total_bytes=size_bytes - base)
    placed = {name: Placed(spec, base + start, stop - start) for name, spec, start, stop in found}
    return ShardLayout(head=bytes(image[:base]), placed=placed, size_bytes=size_bytes)


def _refuse_unreadable(specs: Mapping[str, TensorSpec]) -> None:
    if len(specs) > MOST_TENSORS:
        fix = "Put small tensors together."
        raise StateTooLargeError(what="tensors of the state", found=len(specs), most=MOST_TENSORS, fix=fix)
    for name, spec in specs.items():
        if (elements := _elements(spec.shape)) > _MOST_ELEMENTS:
            what, fix = f"elements in the shape of {name}", "Give this empty tensor another shape."
            raise StateTooLargeError(what=what, found=elements, most=_MOST_ELEMENTS, fix=fix)


def _elements(shape: Iterable[int]) -> int:
    """As many as there are, were no side of it zero."""
    return math.prod(max(number, 1) for number in shape)


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TypeError("its __metadata__ is not a table of strings")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entry(item: dict[str, object]) -> tuple[TensorSpec, int, int]:
    shape, offsets = item["shape"], item["data_offsets"]
    if (
        item.keys() != {"dtype", "shape", "data_offsets"}
        or not isinstance(shape, list)
        or not isinstance(offsets, list)
    ):
        raise TypeError("an entry has other fields than dtype, shape and data_offsets")
    if not {int}.issuperset(map(type, (*shape, *offsets))) or min(*shape, *offsets) < 0:
        raise ValueError("a size or offset is not a whole number")
    spec, size_bytes = _spec_of(str(item["dtype"]), tuple(shape))
    start, stop = offsets
    if stop - start != size_bytes:
        raise ValueError("a tensor's bytes are not those of its shape")
    return spec, start, stop


@functools.lru_cache(maxsize=1024)  # Of ten thousand tensors, most have the shape of another.
def _spec_of(code: str, shape: tuple[int, ...]) -> tuple[TensorSpec, int]:
    if _elements(shape) > _MOST_ELEMENTS:
        raise ValueError("a shape is larger than any tensor's")
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
