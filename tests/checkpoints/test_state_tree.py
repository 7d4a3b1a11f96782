"""State trees come back as they were, and what is not data is refused by its path."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from segue.checkpoints.format.snapshot import digest, take
from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.errors import UnsupportedStateError


class OwnZone(tzinfo):
    """A zone that nothing but its own code knows."""

    def utcoffset(self, _):
        return timedelta(0)


def there_and_back(tree):
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.loads(json.dumps(encode_tree(tree, path="state", tensors=tensors), allow_nan=False))
    return decode_tree(skeleton, tensors)


@pytest.mark.parametrize(
    "tree",
    [
        None,
        True,
        2**80,
        0.1,
        -0.0,
        "text",
        b"\x00\xff",
        [],
        (),
        {},
        (1, (2.5, "x"), [None]),
        {"a": {"b": [1, {"c": ()}]}},
        {0: "int key", "0": "str key", 1.5: "float key", True: "bool key"},
        {"$tensor": "not a tag", "plain": 1},
        {"$": {}},
        {3, 1, 2},
        OrderedDict(z=1, a=2),
    ],
)
def test_plain_data_comes_back_equal_and_of_its_type(tree):
    back = there_and_back(tree)
    assert back == tree
    assert type(back) is (dict if isinstance(tree, OrderedDict) else type(tree))


@pytest.mark.parametrize(
    "value",
    [
        Decimal("1.10"),
        Decimal("NaN").copy_sign(Decimal(-1)),
        Fraction(1, 3),
        date(2026, 2, 28),
        time(1, 2, 3, 4, tzinfo=UTC),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
        timedelta(days=-1, microseconds=1),
        Path("a") / "b",
        PurePosixPath("/a"),
        PureWindowsPath("c:/a"),
        UUID(int=2**127),
        range(3, 0, -1),
        slice(None, 2),
        torch.bfloat16,
        torch.device("cuda", 3),
        np.datetime64("2026-02-28T01", "h"),
        np.timedelta64("NaT", "ns"),
        np.complex64(1 - 2j),
        np.bytes_(b"a"),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_constants_come_back_equal_and_of_their_type(value):
    back = there_and_back({"x": [value]})["x"][0]
    assert (type(back), repr(back), str(back)) == (type(value), repr(value), str(value))
    assert getattr(back, "fold", 0) == getattr(value, "fold", 0)


@pytest.mark.parametrize("lie", ["1e999999999", [1, 0], ["1e999999999"]])
def test_a_fraction_that_somebody_has_changed_is_refused_at_once(lie):
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
        decode_tree({"$constant": ["fraction", lie]}, {})


@pytest.mark.parametrize("key", [date(2026, 2, 28), Path("a"), Fraction(1, 3)])
def test_constants_may_be_keys(key):
    assert there_and_back({key: 1, "plain": 2}) == {key: 1, "plain": 2}


def test_arrays_of_times_come_back_in_their_unit():
    array = np.array(["2026-02-28", "NaT"], dtype="datetime64[s]").reshape(1, 2)
    back = there_and_back([array])[0]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array, equal_nan=True)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_floats_that_json_has_no_word_for_come_back(value):
    back = there_and_back({"x": value})["x"]
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor(3.5),
        torch.empty(0, 5),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.arange(4, dtype=torch.uint8),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(8)[::2],
    ],
)
def test_tensors_come_back_bit_for_bit(tensor):
    back = there_and_back({"t": tensor})["t"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("array", [np.arange(5, dtype=np.uint32), np.eye(3), np.array(2.5)])
def test_arrays_come_back_as_arrays(array):
    back = there_and_back([array])[0]
    assert isinstance(back, np.ndarray)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_numpy_scalars_keep_their_type():
    back = there_and_back({"x": np.float32(0.1)})["x"]
    assert (type(back), back) == (np.float32, np.float32(0.1))


def test_two_names_that_make_one_path_do_not_overwrite_each_other():
    back = there_and_back({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    assert (back["a.b"].item(), back["a"]["b"].item()) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": [lambda: 1]}, "state.a.0"),
        ({"a": {"b": object()}}, "state.a.b"),
        ({(1, object()): 3}, "state"),
        ({"s": torch.eye(2).to_sparse()}, "state.s"),
        ({"o": np.array([object()])}, "state.o"),
        ({"l": np.longdouble(1)}, "state.l"),
        ({"v": np.zeros(1, dtype=[("a", int)])[0]}, "state.v"),
        ({"z": datetime(2026, 1, 1, tzinfo=OwnZone())}, "state.z"),
        ({"p": pandas.Timestamp("2026-01-01")}, "state.p"),
        ({"s": [slice("a", "b")]}, "state.s.0"),
    ],
)
def test_what_is_not_data_is_refused_by_its_path(tree, path):
    with pytest.raises(UnsupportedStateError) as caught:
        there_and_back(tree)
    assert caught.value.path == path


@pytest.mark.parametrize("wrapped", [lambda t: t, nn.Parameter])
def test_a_tensor_that_is_made_of_other_tensors_is_refused_by_its_path(wrapped):
    held = wrapped(TwoTensor(torch.zeros(3), torch.ones(3)))
    for tree in ({"w": held}, {"w": held, "b": torch.zeros(1)}, {"state": [held]}):
        with pytest.raises(UnsupportedStateError, match="tensor of the class TwoTensor") as caught:
            take({"model": tree})
        assert caught.value.path.startswith("model.")
        assert "returns the inner tensors" in caught.value.fix


def test_a_snapshot_does_not_change_when_training_goes_on():
    live = torch.zeros(4)
    snapshot = take({"model": {"w": live}})
    live.add_(1)
    assert snapshot.tensors["model.w"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"w": torch.tensor([1.0, 2.0]), "n": 2}},
        {"model": {"w": torch.tensor([1.0, 2.5]), "n": 1}},
        {"model": {"w": torch.tensor([[1.0, 2.0]]), "n": 1}},
        {"model": {"w": torch.tensor([1.0, 2.0], dtype=torch.float64), "n": 1}},
        {"model": {"v": torch.tensor([1.0, 2.0]), "n": 1}},
    ],
)
def test_a_component_digest_sees_every_kind_of_change(changed):
    before = digest(take({"model": {"w": torch.tensor([1.0, 2.0]), "n": 1}}))
    assert digest(take(changed)).components != before.components
