"""Marks of a state: what changes them, and what they leave out."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from segue.continuity.state_marks import WHOLE_ELEMENTS, state_marks

TREE = {
    "weight": torch.arange(6.0),
    "count": torch.tensor(3),
    "lr": 0.1,
    "name": "a",
    "list": [1, 2.5],
    4: {"b": np.arange(3.0), "flag": True},
}


def mark_of(tree):
    return state_marks({"": tree})[""]


def changed(change):
    tree = copy.deepcopy(TREE)
    change(tree)
    return mark_of(tree)


@pytest.mark.parametrize(
    ("change", "is_plain"),
    [
        (lambda tree: tree["weight"].__setitem__(2, 7.0), False),
        (lambda tree: tree.update(lr=math.nextafter(0.1, 1)), False),
        (lambda tree: tree["list"].__setitem__(1, 2.6), False),
        (lambda tree: tree[4]["b"].__setitem__(0, 1.0), False),
        (lambda tree: tree["count"].add_(1), True),
        (lambda tree: tree.update(name="b"), True),
        (lambda tree: tree[4].update(flag=False), True),
        (lambda tree: tree.update(weight=torch.arange(6.0).reshape(2, 3)), True),
    ],
)
def test_every_change_changes_the_mark_and_numbers_alone_leave_the_plain_part(change, is_plain):
    before, after = mark_of(TREE), changed(change)
    assert before.digest != after.digest
    assert (before.plain != after.plain) is is_plain


def test_the_order_of_a_mapping_is_no_part_of_the_state():
    assert mark_of({1: 2.0, "a": torch.ones(2), "b": torch.zeros(3)}) == mark_of(
        {"b": torch.zeros(3), "a": torch.ones(2), 1: 2.0}
    )
    assert mark_of({"a": torch.ones(2), "b": torch.zeros(3)}) == mark_of({"b": torch.zeros(3), "a": torch.ones(2)})


def test_the_norm_is_that_of_all_finite_numbers():
    mark = mark_of({"a": torch.tensor([3.0, math.nan]), "b": 4.0, "c": torch.tensor([0.0], dtype=torch.bfloat16)})
    assert mark.norm == pytest.approx(5.0)
    assert mark_of({"a": torch.tensor([1, 2])}).norm is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_tensors_of_every_kind_have_a_mark(dtype):
    one, other = torch.ones(5).to(dtype), torch.zeros(5).to(dtype)
    assert mark_of({"a": one, "b": one}).digest != mark_of({"a": one, "b": other}).digest


def test_an_update_of_a_large_tensor_is_seen_wherever_its_memory_lies():
    large = torch.zeros(WHOLE_ELEMENTS * 3, 2).t()
    before = mark_of({"a": large})
    large.mul_(1.0).add_(1e-6)
    assert mark_of({"a": large}).digest != before.digest


def test_a_part_that_no_checkpoint_can_hold_has_no_mark():
    assert state_marks({"a": {"b": object()}, "c": {"d": 1}}).keys() == {"c"}


def test_two_processes_with_the_same_state_have_the_same_marks():
    def built():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}

    assert state_marks(built()) == state_marks(built())
