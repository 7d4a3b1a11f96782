"""The norms in a witness row show small changes for every parameter type."""

from __future__ import annotations

import pytest
import torch

from segue.trainer.ranks.ddp import parameter_norm, total_norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("others", [[], [torch.full((3,), 2.0)]])
def test_the_last_digit_of_one_parameter_changes_the_norm(dtype, others):
    before = torch.full((64,), 3.0, dtype=dtype)
    after = before.clone()
    after[0] = torch.nextafter(before[0], torch.tensor(4.0, dtype=dtype)) if dtype != torch.float32 else 3.001
    assert parameter_norm([before, *others]) != parameter_norm([after, *others])
    expected = torch.cat([before.double(), *(other.double() for other in others)]).norm()
    assert parameter_norm([before, *others]).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("as_parameters", [False, True])
def test_norms_are_what_torch_makes_of_them_to_the_bit(dtype, as_parameters):
    for seed in range(20):
        made = torch.Generator().manual_seed(seed)
        shapes = [(300, 41), (7, 5), (11,), (), (1, 4096)][: 1 + seed % 5]
        tensors = [torch.randn(shape, generator=made).to(dtype) for shape in shapes]
        tensors[0] = tensors[0].t()
        if as_parameters:
            tensors = [torch.nn.Parameter(tensor) for tensor in tensors]
        expected = torch.nn.utils.get_total_norm(tensors)
        found = total_norm(tensors)
        assert torch.equal(found, expected)
        assert (found.dtype, found.requires_grad) == (expected.dtype, False)
        if dtype != torch.bfloat16:
            assert torch.equal(parameter_norm(tensors), expected)


def test_the_norm_of_nothing_is_zero_and_mixed_tensors_are_summed():
    assert total_norm([]) == 0
    mixed = [torch.full((4,), 3.0), torch.full((4,), 4.0, dtype=torch.float64)]
    assert total_norm(mixed) == 10
