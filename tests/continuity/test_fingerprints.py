"""What a batch holds is seen, whatever it is made of; the same content has the same hash in every process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from segue.continuity.fingerprints import input_fingerprint


@dataclass
class Batch:
    """A collate function's own type."""

    x: Any
    made_by: int = 0


class Graphs:
    """Tensors two objects deep, as batches of graphs keep them; and a way back to the whole."""

    def __init__(self, x: torch.Tensor) -> None:
        self.store = Batch({"nodes": x})
        self.store.made_by = self


CONTENTS = {
    "tensor": lambda value: torch.tensor([value]),
    "bf16": lambda value: torch.tensor([value]).bfloat16(),
    "conjugated": lambda value: torch.tensor([value * 1j]).conj(),
    "negated": lambda value: torch.tensor([value * 1j]).conj().imag,
    "one of every second": lambda value: torch.tensor([value, 0.0])[::2],
    "coo": lambda value: torch.tensor([[0.0, value]]).to_sparse(),
    "csr": lambda value: torch.tensor([[0.0, value]]).to_sparse_csr(),
    "csc": lambda value: torch.tensor([[0.0, value]]).to_sparse_csc(),
    "nested": lambda value: torch.nested.nested_tensor([torch.ones(2), torch.tensor([value])]),
    "NumPy scalar": np.float32,
    "NumPy whole number": np.int64,
    "array of objects": lambda value: np.array([value, "a"], dtype=object),
    "complex": lambda value: value * 1j,
    "tuple in dict": lambda value: {"x": (1, value)},
    "data class": lambda value: Batch(torch.tensor([value])),
    "objects in objects": lambda value: Graphs(torch.tensor([value])),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state).*:UserWarning")
@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS.keys())
def test_another_value_is_another_hash_and_the_same_value_the_same(make):
    assert input_fingerprint(make(1.0)) == input_fingerprint(make(1.0))
    assert input_fingerprint(make(1.0)) != input_fingerprint(make(2.0))


def test_the_structure_counts():
    one = torch.ones(2)
    assert input_fingerprint([one, one]) != input_fingerprint((one, one))
    assert input_fingerprint(torch.ones(2, 3)) != input_fingerprint(torch.ones(3, 2))
    assert input_fingerprint(torch.ones(2)) != input_fingerprint(torch.ones(2).double())
    assert input_fingerprint({"x": one}) != input_fingerprint({"y": one})
    numbers = np.zeros(8, dtype=np.int64)
    for other in (numbers.reshape(2, 4), numbers.view(np.uint64), numbers.view(np.float64)):
        assert input_fingerprint(numbers) != input_fingerprint(other)


def test_plain_values_of_an_object_may_differ_between_processes_and_do_not_count():
    one = torch.ones(2)
    assert input_fingerprint(Batch(one, made_by=os.getpid())) == input_fingerprint(Batch(one, made_by=0))
