"""The norms in a witness row show small changes for every parameter type."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from segue.trainer.ranks.ddp import norm_and_clip, parameter_norm, parameters_of, total_norm
from segue.trainer.workloads.steps.step import ParameterOrder


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


def gradients_of(size: float, *, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = torch.Generator().manual_seed(5)
    held = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in [(30, 7), (), (11,), (1, 64)]]
    for parameter in held[1:]:
        parameter.grad = (size * torch.randn(parameter.shape, generator=made)).to(dtype)
    return held


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limit", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, float("inf"), float("nan")])
def test_a_clip_leaves_the_bits_of_torch_below_at_and_above_its_limit(dtype, limit, size):
    plain, ours = gradients_of(size, dtype=dtype), gradients_of(size, dtype=dtype)
    clip = torch.nn.utils.get_total_norm if limit is None else partial(torch.nn.utils.clip_grad_norm_, max_norm=limit)
    expected = clip([p.grad for p in plain[1:]] if limit is None else plain)
    found = norm_and_clip(ours, limit=limit)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert ours[0].grad is None
    for mine, other in zip(ours[1:], plain[1:], strict=True):
        assert torch.equal(bits(mine.grad), bits(other.grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_near_its_limit_a_clip_still_leaves_the_bits_of_torch(dtype):
    for step in range(80):
        ours, plain = (gradients_of(0.125, dtype=dtype) for _ in range(2))
        limit = (0.88 + 0.002 * step) ** -1 * float(torch.nn.utils.get_total_norm([p.grad for p in plain[1:]]))
        torch.nn.utils.clip_grad_norm_(plain, limit)
        norm_and_clip(ours, limit=limit)
        for mine, other in zip(ours[1:], plain[1:], strict=True):
            assert torch.equal(bits(mine.grad), bits(other.grad))


def test_gradients_of_several_types_are_clipped_as_torch_does_it():
    def made():
        held = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))]
        for parameter in held:
            parameter.grad = torch.full_like(parameter, 3.0)
        return held

    plain, ours = made(), made()
    expected = torch.nn.utils.clip_grad_norm_(plain, 1.0)
    assert torch.equal(norm_and_clip(ours, limit=1.0), expected)
    assert all(torch.equal(mine.grad, other.grad) for mine, other in zip(ours, plain, strict=True))


class Walks(nn.Module):
    """Yields its parameters in an order of its own."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        inner = getattr(nn.Module, method)
        self.__class__ = type("Walks", (nn.Module,), {method: lambda self, *a, **k: reversed([*inner(self, *a, **k)])})


def shared() -> nn.Module:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))])
    model.append(model[1][0])
    model[0].weight = model[1][0].weight
    model[1].register_module("nothing", None)
    model.register_parameter("none", None)
    return model


@pytest.mark.parametrize(
    "make",
    [
        shared,
        lambda: nn.TransformerEncoderLayer(8, 2),
        lambda: Walks("parameters"),
        lambda: Walks("named_parameters"),
        lambda: Walks("named_modules"),
        lambda: nn.Sequential(nn.Linear(1, 1), Walks("named_modules")),
        lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_parameters_come_in_the_order_of_the_model_itself(make):
    model = make()
    # One that is shared counts where it comes first.
    found = list({id(parameter): parameter for parameter in parameters_of(model)}.values())
    expected = list(model.parameters())
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert [each.data_ptr() for each in found] == [each.data_ptr() for each in expected]


def test_the_order_of_the_model_is_looked_up_again_with_other_parameters_and_where_it_is_asked_to():
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3))
    first, second = ([*layer.parameters()] for layer in model)
    alone = nn.Parameter(torch.zeros(1))
    order = ParameterOrder()
    assert same(order.of(model, [*second, *first, alone]), [*first, *second, alone])
    model[0], model[1] = model[1], model[0]
    assert same(order.of(model, [*second, *first, alone]), [*first, *second, alone]), "not walked at each step"
    order.look_again()
    assert same(order.of(model, [*second, *first, alone]), [*second, *first, alone])
    assert same(order.of(model, [*first, *second]), [*second, *first])
    assert same(order.of(model, [*first]), first), "a frozen layer is none of the optimizer's"


def same(found, expected):
    return len(found) == len(expected) and all(one is other for one, other in zip(found, expected, strict=True))
