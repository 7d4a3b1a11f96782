"""Digests of components: everything counts but the order of a mapping's items."""

from __future__ import annotations

import torch

from segue.checkpoints.format.digests import owners
from segue.checkpoints.format.snapshot import digest, take


def of(tree):
    return digest(take({"part": tree})).components["part"]


def test_the_order_of_a_mapping_is_no_part_of_the_state():
    assert of({"a": torch.ones(2), "b": torch.zeros(2)}) == of({"b": torch.zeros(2), "a": torch.ones(2)})
    assert of({"a": 1, "b": {"c": 2, "d": 3}}) == of({"b": {"d": 3, "c": 2}, "a": 1})
    assert of({1: "a", 2: torch.ones(1)}) == of({2: torch.ones(1), 1: "a"})


def test_the_order_of_a_list_and_every_value_is():
    assert of([1, 2]) != of([2, 1])
    assert of({"a": 1, "b": 2}) != of({"a": 2, "b": 1})
    assert of({1: "a", 2: "b"}) != of({1: "b", 2: "a"})
    assert of({"a": torch.ones(2), "b": torch.zeros(2)}) != of({"a": torch.zeros(2), "b": torch.ones(2)})


def test_a_tensor_belongs_to_the_component_with_the_longest_name_before_it():
    names = ["extra.ema.w", "extra.w", "extra.em", "model"]
    found = dict(owners(names, ["extra", "extra.ema", "model"]))
    assert found == {"extra.ema.w": "extra.ema", "extra.w": "extra", "extra.em": "extra", "model": "model"}
