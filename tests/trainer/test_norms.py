"""The norms in a witness row tell small changes, whatever type the parameters have."""

from __future__ import annotations

import pytest
import torch

from segue.trainer.ranks.ddp import parameter_norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("beside", [[], [torch.full((3,), 2.0)]])
def test_the_last_digit_of_one_parameter_changes_the_norm(dtype, beside):
    before = torch.full((64,), 3.0, dtype=dtype)
    after = before.clone()
    after[0] = torch.nextafter(before[0], torch.tensor(4.0, dtype=dtype)) if dtype != torch.float32 else 3.001
    assert parameter_norm([before, *beside]) != parameter_norm([after, *beside])
    expected = torch.cat([before.double(), *(other.double() for other in beside)]).norm()
    assert parameter_norm([before, *beside]).item() == pytest.approx(expected.item(), rel=1e-6)


def test_norms_of_fp32_are_what_torch_makes_of_them():
    parameters = [torch.randn(7, 5), torch.randn(11)]
    assert torch.equal(parameter_norm(parameters), torch.nn.utils.get_total_norm(parameters))
