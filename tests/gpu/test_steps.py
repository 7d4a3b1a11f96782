"""A step on a device: what the host waits for, and what a resume does with the device's random stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.placement import place
from segue.trainer.workloads.state import rng_components
from segue.trainer.workloads.steps.step import begin_step
from tests.gpu.recipes import build

KINDS = ["mlp", "averaged", "bf16"]


def placed(kind, device, **config):
    torch.manual_seed(0)
    recipe = build({"kind": kind} | config)
    place(recipe, device)
    batch = [tensor.to(device) for tensor in next(iter(recipe.data))]
    return recipe, batch


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_read_a_step_later_are_those_of_their_own_step(device, kind):
    at_once, late = placed(kind, device), placed(kind, device)
    late[0].model.load_state_dict(at_once[0].model.state_dict())
    expected, begun = [], []
    for step in range(1, 9):
        torch.manual_seed(step)
        expected.append(begin_step(at_once[0], [at_once[1]], step=step).read().outcome.loss)
        torch.manual_seed(step)
        begun.append(begin_step(late[0], [late[1]], step=step))
    assert {each.is_late for each in begun} == {device.type == "cuda"}
    assert [each.read().outcome.loss for each in begun] == pytest.approx(expected, rel=1e-4)


@pytest.mark.only_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_for_no_step_while_it_reads_the_one_before(device, kind):
    recipe, batch = placed(kind, device, by_hand=True)
    before = [begin_step(recipe, [batch], step=step) for step in range(1, 4)][-1]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(4, 9):
            begun = begin_step(recipe, [batch], step=step)
            before.read()
            before = begun
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_masks_of_dropout_follow_the_stream_that_is_restored(device):
    model, drop = nn.Linear(4, 4).to(device), nn.Dropout(0.5)
    streams, ones = rng_components(Ranks(), model, device=device), torch.ones(10_000, device=device)
    drop(ones)
    stored = {name: stream.capture() for name, stream in streams.items()}
    expected = [drop(ones) for _ in range(3)]
    torch.rand(100, device=device)
    for name, stream in streams.items():
        stream.restore(stored[name])
    assert all(torch.equal(drop(ones), mask) for mask in expected)


@pytest.mark.only_cuda
def test_masks_within_a_recorded_graph_do_so_as_well(device):
    drop, ones = nn.Dropout(0.5), torch.ones(10_000, device=device, requires_grad=True)
    recorded = torch.cuda.make_graphed_callables(drop, (ones,))
    streams = rng_components(Ranks(), nn.Linear(4, 4).to(device), device=device)
    stored = {name: stream.capture() for name, stream in streams.items()}
    expected = [recorded(ones).detach().clone() for _ in range(3)]
    for name, stream in streams.items():
        stream.restore(stored[name])
    assert all(torch.equal(recorded(ones), mask) for mask in expected)
