"""The norms in a witness row show small changes for every parameter type."""

from __future__ import annotations

import pytest
import torch

from segue.trainer.ranks.ddp import parameter_norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("others", [[], [torch.full((3,), 2.0)]])
def test_the_last_digit_of_one_parameter_changes_the_norm(dtype, others):
    before = torch.full((64,), 3.0, dtype=dtype)
    after = before.clone()
    after[0] = torch.nextafter(before[0], torch.tensor(4.0, dtype=dtype)) if dtype != torch.float32 else 3.001
    assert parameter_norm([before, *others]) != parameter_norm([after, *others])
    expected = torch.cat([before.double(), *(other.double() for other in others)]).norm()
    assert parameter_norm([before, *others]).item() == pytest.approx(expected.item(), rel=1e-6)


def test_norms_of_fp32_are_what_torch_makes_of_them():
    parameters = [torch.randn(7, 5), torch.randn(11)]
    assert torch.equal(parameter_norm(parameters), torch.nn.utils.get_total_norm(parameters))
