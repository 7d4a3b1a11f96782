"""A data set has one hash in every process, and another when it holds something else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from segue.continuity.data_hash import WHOLE_BYTES, data_hashes
from segue.continuity.object_walk import Leaf


def hashes_of_data(value):
    return data_hashes([Leaf("x", value)])["x"]


LARGE = WHOLE_BYTES // 4 + 1_000_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(100.0),
        lambda: torch.arange(100).reshape(10, 10).T,
        lambda: np.arange(100.0).reshape(10, 10)[:, ::2],
        lambda: np.array(["a", "b"] * 200),
        lambda: np.array([["a", 1]] * 200, dtype=object),
        lambda: pd.DataFrame({"a": range(300), "b": ["x"] * 300}),
        lambda: [("path", n) for n in range(5000)],
        lambda: range(1000),
        lambda: bytearray(b"abc"),
        lambda: np.zeros(LARGE, np.float32),
        lambda: torch.zeros(2, LARGE)[:, ::2],
    ],
    ids=[
        "tensor",
        "transposed",
        "strided",
        "strings",
        "objects",
        "frame",
        "list",
        "range",
        "bytes",
        "large",
        "large-strided",
    ],
)
def test_data_has_one_hash_whoever_looks_and_another_when_it_changes(make):
    value = make()
    expected = hashes_of_data(value)
    assert hashes_of_data(make()) == expected
    if isinstance(value, pd.DataFrame):
        value.loc[7, "b"] = "y"
    elif isinstance(value, range):
        value = range(1, 1001)
    elif isinstance(value, list):
        value[0] = ("path", -1)
    else:
        value[0] = value[1]
        if isinstance(value, (torch.Tensor, np.ndarray)) and value.dtype in (torch.float32, np.float32):
            value[0] = 1.0
    if isinstance(value, np.ndarray) and value.dtype == object:
        value[0, 0] = "c"
    assert hashes_of_data(value) != expected


def test_types_and_shapes_are_part_of_the_hash():
    assert len({hashes_of_data(v) for v in (torch.zeros(4), torch.zeros(2, 2), torch.zeros(4).int(), np.zeros(4))}) == 4


def test_data_of_a_kind_that_cannot_be_read_has_no_hash():
    fields = np.zeros(3, dtype=[("a", object), ("b", float)])
    lists = pd.DataFrame({"tokens": [[1, 2], [3]]})
    assert data_hashes([Leaf("lists", lists), Leaf("rows", torch.zeros(2))]).keys() == {"rows"}
    assert data_hashes([Leaf("fields", fields)]).keys() <= {"fields"}


def test_long_lists_of_files_are_the_same_wherever_they_are_mounted():
    there, here = ([(f"{place}/{n}.jpg", n) for n in range(500)] for place in ("/mnt/a", "/data/b"))
    assert hashes_of_data(there) == hashes_of_data(here)
    assert hashes_of_data(there) != hashes_of_data([("/data/b/other.jpg", 0), *here[1:]])
