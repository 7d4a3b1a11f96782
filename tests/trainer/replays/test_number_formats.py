"""The coarsest number format of a step is seen without changing it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from segue.trainer.replays.replay import noting_formats


def made(dtype, *, is_autocast):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(4, 8)
    if is_autocast:
        with torch.autocast("cpu", dtype=dtype):
            loss = model(x).float().square().mean()
    else:
        loss = model.to(dtype)(x.to(dtype)).square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("dtype", "is_autocast", "unit"),
    [
        (torch.float32, False, 2.0**-23),
        (torch.float64, False, 2.0**-23),
        (torch.bfloat16, False, 2.0**-7),
        (torch.bfloat16, True, 2.0**-7),
        (torch.float16, True, 2.0**-10),
    ],
)
def test_the_coarsest_format_is_seen_and_every_gradient_stays_as_it_is(dtype, is_autocast, unit):
    expected = made(dtype, is_autocast=is_autocast)
    with noting_formats() as formats:
        found = made(dtype, is_autocast=is_autocast)
    assert formats.unit == unit
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_model_that_computes_its_activations_again_is_seen_as_well():
    model = nn.Linear(8, 8).to(torch.bfloat16)
    with noting_formats() as formats:
        checkpoint(model, torch.randn(2, 8, dtype=torch.bfloat16), use_reentrant=False).sum().backward()
    assert formats.unit == 2.0**-7
