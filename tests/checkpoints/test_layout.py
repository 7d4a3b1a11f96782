"""A shard file is a valid safetensors file: both ways against that library, and no hostile header gets through."""

from __future__ import annotations

import json

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.checkpoints.format.digests import TensorDigest, digests_of
from segue.checkpoints.format.layout import (
    DTYPES,
    MAX_HEADER_BYTES,
    MOST_TENSORS,
    PAGE_BYTES,
    MalformedShardError,
    TensorSpec,
    layout_of,
    read_layout,
)
from segue.errors import StateTooLargeError

SHAPES = [(), (1,), (7,), (3, 5), (0,), (2, 0, 3), (2, 3, 4, 5)]
TYPES = sorted(DTYPES)


def made(dtype, shape, *, seed=7):
    """A tensor of any type, with all kinds of bits in it that are a value of the type."""
    spec = TensorSpec(dtype, shape)
    bits = torch.randint(0, 256, (spec.size_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    bits = bits % 2 if dtype == "bool" else bits
    return bits.view(getattr(torch, dtype)).reshape(shape) if spec.size_bytes else torch.empty(shape, dtype=of(dtype))


def of(dtype):
    return getattr(torch, dtype)


def bits_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def specs_of(tensors):
    return {name: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()}


def shard_file_of(tensors):
    """The tensors as a shard file, filled by its layout."""
    layout = layout_of(specs_of(tensors))
    shard_file = bytearray(layout.size_bytes)
    shard_file[: len(layout.head)] = layout.head
    for name, (_, start, size_bytes) in layout.placed.items():
        shard_file[start : start + size_bytes] = bits_of(tensors[name])
    return bytes(shard_file)


def same(one, other):
    return (one.dtype, one.shape, bits_of(one)) == (other.dtype, other.shape, bits_of(other))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_library_reads_every_type_that_we_lay_out(dtype):
    tensors = {f"t{n}": made(dtype, shape, seed=n) for n, shape in enumerate(SHAPES)}
    found = safetensors.torch.load(shard_file_of(tensors))
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("dtype", TYPES)
def test_we_read_every_type_that_the_library_writes(dtype):
    tensors = {f"t{n}": made(dtype, shape, seed=n) for n, shape in enumerate(SHAPES)}
    shard_file = safetensors.torch.save(tensors, metadata={"format": "pt"})
    layout = read_layout(memoryview(shard_file))
    assert {name: placed.spec for name, placed in layout.placed.items()} == specs_of(tensors)
    for name, (_, start, size_bytes) in layout.placed.items():
        assert shard_file[start : start + size_bytes] == bits_of(tensors[name]), name


def test_a_mixed_state_comes_back_from_a_file_of_the_library_and_of_ours(tmp_path):
    tensors = {f"{dtype}.{n}": made(dtype, shape) for dtype in TYPES for n, shape in enumerate(SHAPES)}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    ours.write_bytes(shard_file_of(tensors))
    safetensors.torch.save_file(tensors, theirs)
    with safetensors.safe_open(ours, framework="pt") as file:
        assert all(same(file.get_tensor(name), tensor) for name, tensor in tensors.items())
    data = theirs.read_bytes()
    for name, (_, start, size_bytes) in read_layout(memoryview(data)).placed.items():
        assert data[start : start + size_bytes] == bits_of(tensors[name]), name


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
states = st.dictionaries(names, st.builds(TensorSpec, st.sampled_from(TYPES), shapes), max_size=12)


@settings(max_examples=60, deadline=None)
@given(states)
def test_any_state_is_laid_out_without_holes_aligned_from_a_page_on_and_read_back_the_same(specs):
    layout = layout_of(specs)
    assert len(layout.head) % PAGE_BYTES == 0
    shard_file = layout.head + bytes(layout.size_bytes - len(layout.head))
    found = read_layout(memoryview(shard_file))
    assert (dict(found.placed), found.size_bytes) == (dict(layout.placed), layout.size_bytes)
    assert all(placed.start % DTYPES[placed.spec.dtype][1] == 0 for placed in layout.placed.values())
    ends = sorted((placed.start, placed.start + placed.size_bytes) for placed in layout.placed.values())
    assert [start for start, _ in ends] == [len(layout.head), *(end for _, end in ends)][: len(ends)]
    assert set(safetensors.torch.load(shard_file)) == set(specs)


@pytest.mark.parametrize("count", [0, 1, 200, 5000])
def test_a_header_of_any_length_ends_on_a_page(count):
    layout = layout_of({f"model.layer.{n}.weight": TensorSpec("float32", (3,)) for n in range(count)})
    assert len(layout.head) % PAGE_BYTES == 0
    assert len(layout.head) - PAGE_BYTES < 8 + len(layout.head[8:].rstrip()) <= len(layout.head)


def test_equal_widths_keep_the_order_in_which_they_came():
    layout = layout_of({name: TensorSpec("float32", (1,)) for name in ("z", "a", "m")})
    assert list(layout.placed) == ["z", "a", "m"]


@pytest.mark.matrix
def test_the_longest_header_that_is_laid_out_is_read_by_the_library_and_by_us():
    most_bytes = (MAX_HEADER_BYTES + 8) // PAGE_BYTES * PAGE_BYTES - 8
    spec = TensorSpec("uint8", (1,))
    around_bytes = len(layout_of({"": spec}).head[8:].rstrip())
    name = "n" * (most_bytes - around_bytes)
    shard_file = layout_of({name: spec}).head + b"x"
    assert len(shard_file) == 8 + most_bytes + 1
    assert [found for found, _ in safetensors.deserialize(shard_file)] == [name]
    assert list(read_layout(memoryview(shard_file)).placed) == [name]
    with pytest.raises(StateTooLargeError, match="names and shapes"):
        layout_of({name + "n": spec})


@pytest.mark.parametrize("shape", [(0, 2**60), (2**30, 0, 2**30)])
def test_the_largest_shape_that_is_laid_out_is_read_back_and_a_larger_one_is_named(shape):
    layout = layout_of({"model.w": TensorSpec("float32", shape)})
    assert read_layout(memoryview(layout.head)).placed["model.w"].spec.shape == shape
    with pytest.raises(StateTooLargeError, match=r"shape of model\.w"):
        layout_of({"model.w": TensorSpec("float32", (2, *shape))})


@pytest.mark.matrix
def test_more_tensors_than_are_read_back_are_not_laid_out():
    specs = dict.fromkeys(map(str, range(MOST_TENSORS + 1)), TensorSpec("uint8", ()))
    with pytest.raises(StateTooLargeError, match=f"tensors of the state: {MOST_TENSORS + 1},"):
        layout_of(specs)


def hostile(header, data=b"\0" * 8):
    """A shard file with that header: a dict, or the text itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start, stop, *, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


REFUSED = {
    "nothing at all": b"",
    "seven bytes": bytes(7),
    "a length and no header": (2).to_bytes(8, "little"),
    "a header longer than the file": (10**6).to_bytes(8, "little") + b"{}",
    "a header of eight exabytes": (2**63).to_bytes(8, "little") + b"{}",
    "a header of all ones": (2**64 - 1).to_bytes(8, "little") + b"{}",
    "a header of zero bytes": bytes(16),
    "no JSON": hostile(b"nonsense"),
    "JSON cut short": hostile(b'{"a":{"dtype":"U8"'),
    "something after the JSON": hostile(json.dumps({"a": entry(0, 8)}).encode() + b"\0\0"),
    "no text": hostile(b"\xff\xfe\xfd"),
    "a list": hostile([entry(0, 8)]),
    "a number": hostile(b"8"),
    "depth": hostile(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "overlapping tensors": hostile({"a": entry(0, 5), "b": entry(3, 8)}),
    "two tensors in one place": hostile({"a": entry(0, 8), "b": entry(0, 8)}),
    "one inside the other": hostile({"a": entry(0, 8), "b": entry(2, 4)}),
    "a hole between them": hostile({"a": entry(0, 3), "b": entry(5, 8)}),
    "a hole before the first": hostile({"a": entry(2, 8)}),
    "bytes left over": hostile({"a": entry(0, 7)}),
    "data and no tensor": hostile({}),
    "a tensor beyond the end": hostile({"a": entry(0, 9)}),
    "a tensor far beyond the end": hostile({"a": entry(0, 8), "b": entry(2**62, 2**62 + 1)}),
    "an empty tensor beyond the end": hostile({"a": entry(0, 8), "b": entry(9, 9, shape=[0])}),
    "a negative offset": hostile({"a": entry(-1, 7)}),
    "an end before its start": hostile({"a": entry(0, 8), "b": entry(8, 4, shape=[0])}),
    "another size than the shape's": hostile({"a": entry(0, 8, shape=[7])}),
    "another size than the type's": hostile({"a": entry(0, 8, dtype="F64", shape=[8])}),
    "a shape that overflows to the right size": hostile({"a": entry(0, 8, shape=[2**61, 2**61, 8])}),
    "a negative shape": hostile({"a": entry(0, 8, shape=[-2, -4])}),
    "a shape of floats": hostile({"a": entry(0, 8, shape=[8.0])}),
    "a shape of texts": hostile({"a": entry(0, 8, shape=["8"])}),
    "a shape of booleans": hostile({"a": entry(0, 8, shape=[8, True])}),
    "a shape that is no list": hostile({"a": entry(0, 8, shape=8)}),
    "a shape of infinity": hostile(b'{"a":{"dtype":"U8","shape":[Infinity],"data_offsets":[0,8]}}'),
    "an offset of floats": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0.0, 8.0]}}),
    "one offset": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8]}}),
    "three offsets": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8, 8]}}),
    "offsets by name": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": {"0": 0, "1": 8}}}),
    "an unknown type": hostile({"a": entry(0, 8, dtype="F7")}),
    "torch's name of a type": hostile({"a": entry(0, 8, dtype="uint8")}),
    "a type that is a list": hostile({"a": entry(0, 8, dtype=["U8"])}),
    "no type": hostile({"a": {"shape": [8], "data_offsets": [0, 8]}}),
    "a field too many": hostile({"a": entry(0, 8) | {"strides": [1]}}),
    "a tensor that is a list": hostile({"a": [0, 8]}),
    "a tensor that is nothing": hostile({"a": None}),
    "metadata that is a list": hostile({"__metadata__": ["pt"], "a": entry(0, 8)}),
    "metadata that is a text": hostile({"__metadata__": "pt", "a": entry(0, 8)}),
    "metadata that is nothing": hostile({"__metadata__": None, "a": entry(0, 8)}),
    "metadata of numbers": hostile({"__metadata__": {"format": "pt", "step": 3}, "a": entry(0, 8)}),
    "metadata of tables": hostile({"__metadata__": {"format": {}}, "a": entry(0, 8)}),
    "a tensor in place of metadata": hostile({"__metadata__": entry(0, 8)}),
    "a number of ten thousand digits": hostile(
        b'{"a":{"dtype":"U8","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,8]}}'
    ),
}


@pytest.mark.parametrize("shard_file", REFUSED.values(), ids=REFUSED)
def test_a_hostile_shard_is_refused(shard_file):
    with pytest.raises(MalformedShardError):
        read_layout(memoryview(shard_file))


def test_what_the_hostile_ones_were_made_from_is_read():
    placed = read_layout(memoryview(hostile({"a": entry(0, 3), "b": entry(3, 8), "c": entry(8, 8)}))).placed
    assert {name: p.size_bytes for name, p in placed.items()} == {"a": 3, "b": 5, "c": 0}


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}',
    ],
    ids=["two places", "first one outside", "two types"],
)
def test_a_name_that_is_there_twice_is_refused(header):
    with pytest.raises(MalformedShardError):
        read_layout(memoryview(hostile(header)))


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**70], [0, 2**62, 2**62]])
def test_an_empty_tensor_of_a_shape_that_nothing_can_have_is_refused(shape):
    with pytest.raises(MalformedShardError):
        read_layout(memoryview(hostile({"a": entry(0, 8), "b": entry(8, 8, shape=shape)})))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4500), st.binary(min_size=1, max_size=3))
def test_whatever_bytes_of_an_shard_are_changed_it_is_read_or_refused_and_never_reaches_outside(at, change):
    shard_file = bytearray(
        shard_file_of({"a": made("float32", (3,)), "b": made("bool", (5, 2)), "c": made("int64", ())})
    )
    at = min(at, len(shard_file) - len(change))
    shard_file[at : at + len(change)] = change
    try:
        placed = read_layout(memoryview(shard_file)).placed
    except MalformedShardError:
        return
    assert all(8 <= p.start <= p.start + p.size_bytes <= len(shard_file) for p in placed.values())
    assert all(p.spec.size_bytes == p.size_bytes for p in placed.values())


def test_digests_do_not_depend_on_the_order_in_which_tensors_lie():
    skeletons = {"model": b"{}", "extra.a": b"1", "extra.a.b": b"2"}
    names = ["model.z", "model.a", "extra.a.x", "extra.a.b.x"]
    tensors = {name: TensorDigest("float32", (2,), f"hash of {name}") for name in names}
    turned = {name: tensors[name] for name in reversed(names)}
    assert digests_of(skeletons, tensors).components == digests_of(skeletons, turned).components
    swapped = tensors | {"model.z": tensors["model.a"], "model.a": tensors["model.z"]}
    assert digests_of(skeletons, tensors).components != digests_of(skeletons, swapped).components
