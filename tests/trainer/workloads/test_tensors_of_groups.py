"""Values of optimizer groups that are tensors, such as a rate on a device: restored in the tensor that is there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segue.trainer.workloads.components import OptimizerState


def made(rate):
    model = nn.Linear(2, 1)
    return torch.optim.AdamW(model.parameters(), lr=rate)


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor_with_the_stored_value():
    stored = OptimizerState(made(torch.tensor(0.25))).capture()
    optimizer = made(torch.tensor(0.5))
    rate = optimizer.param_groups[0]["lr"]
    OptimizerState(optimizer).restore(stored)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.25


@pytest.mark.parametrize(("stored", "live"), [(0.25, torch.tensor(0.5)), (torch.tensor(0.25), 0.5)])
def test_a_rate_of_another_kind_than_the_stored_one_has_the_stored_value(stored, live):
    optimizer = made(live)
    OptimizerState(optimizer).restore(OptimizerState(made(stored)).capture())
    assert float(optimizer.param_groups[0]["lr"]) == 0.25
