"""Staging from a device: the bytes of the safe point, whatever the streams of the device do meanwhile."""

from __future__ import annotations

import gc
import logging
import statistics
import time

import pytest
import torch

from segue.checkpoints.saving.accelerator import TorchAccelerator
from segue.checkpoints.saving.staging import StagingArea
from tests.checkpoints.test_staging import (
    ODD,
    OPTIMIZERS,
    addresses,
    assert_holds,
    begin_and_wait,
    raw,
    staged_bytes,
    train_overlapped,
    trained,
    tree_of,
)

MIB = 2**20


class Full(TorchAccelerator):
    """Without room on the device for a copy of the state."""

    def room_for(self, pairs):
        return None


HAS_ROOM = pytest.mark.parametrize("accelerator", [TorchAccelerator, Full], ids=["room", "full"])


def sleep(cycles=50_000_000):
    """Keep the device's current stream busy."""
    if torch.cuda.is_available():
        torch.cuda._sleep(cycles)


@HAS_ROOM
def test_tensors_of_every_kind_are_copied_before_they_are_overwritten(device, accelerator):
    names = [name for name in ODD if name not in ("uint64", "overlapping itself")]
    tensors = {name: ODD[name].detach().to(device) for name in names}
    expected = {name: tensor.clone().cpu() for name, tensor in tensors.items()}
    tensors["on the processor"] = expected["on the processor"] = torch.arange(5.0)
    staged = StagingArea(accelerator=accelerator()).take(tree_of(tensors))
    for name in names:
        tensors[name].zero_()
    staged.wait()
    assert {n: staged_bytes(staged, f"model.state.{n}") for n in expected} == {n: raw(t) for n, t in expected.items()}


@pytest.mark.alone
@pytest.mark.only_cuda
def test_pages_are_locked_and_copied_at_the_speed_of_locked_memory(device):
    live = {f"w{n}": torch.randn(16 * MIB, device=device) for n in range(8)}
    area = StagingArea(accelerator=Full())
    area.prepare(tree_of(live))
    pinned = torch.empty(sum(t.numel() for t in live.values()), pin_memory=True)
    flat = torch.cat([t.reshape(-1) for t in live.values()])
    ours, torchs = [], []
    for _ in range(5):
        torchs.append(timed(lambda: pinned.copy_(flat, non_blocking=True)))
        staged = None

        def save():
            nonlocal staged
            staged = area.take(tree_of(live))

        ours.append(timed(save))
        area.release(staged)
    assert statistics.median(torchs) >= 0.9 * 0.8 * statistics.median(ours), (ours, torchs)
    area.close()


def timed(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


@pytest.mark.only_cuda
def test_where_locking_is_refused_one_warning_is_given_the_next_kernel_runs_and_bytes_are_equal(device, caplog):
    memory, accelerator = torch.zeros(4 * MIB, dtype=torch.uint8), TorchAccelerator()
    assert int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr() + MIB, MIB, 0)) == 0
    with caplog.at_level(logging.WARNING):
        assert not accelerator.lock_pages(memory, device=device), "a part of it is locked already"
    assert "refused to lock" in caplog.text
    assert torch.ones(3, device=device).sum().item() == 3
    assert int(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr() + MIB)) == 0


@pytest.mark.only_cuda
@pytest.mark.parametrize("size_bytes", [2**30 + 4096, 3 * 2**30 + 4])
def test_a_tensor_of_any_size_is_copied_whole(device, size_bytes):
    live = torch.randint(-(2**31), 2**31 - 1, (size_bytes // 4,), dtype=torch.int32, device=device)
    tree = tree_of({"w": live, "small": torch.ones(3, device=device)})
    for accelerator, deferred in ((TorchAccelerator(), None), (Full(), None), (Full(), addresses([live]))):
        area = StagingArea(accelerator=accelerator)
        staged = area.take(tree) if deferred is None else begin_and_wait(area, tree, deferred)
        staged.wait()
        _, start, size = staged.layout.placed["model.state.w"]
        held = torch.frombuffer(staged.staging_buffer.memory, dtype=torch.int32, offset=start, count=size // 4)
        assert torch.equal(held, live.cpu())  # CUDA copies nothing across two ranges of locked pages.
        area.close()


@HAS_ROOM
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.only_cuda
def test_a_write_on_another_stream_belongs_to_the_safe_point(device, is_overlapped, accelerator):
    average, side = torch.zeros(MIB, device=device), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sleep()
        average.fill_(1.0)
    area = StagingArea(accelerator=accelerator())
    tree = tree_of({"average": average})
    staged = begin_and_wait(area, tree, addresses([average])) if is_overlapped else area.take(tree)
    assert_holds(staged, {"average": torch.ones(MIB)})


@HAS_ROOM
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_overlapped_copy_holds_the_safe_point_though_the_next_step_follows_at_once(device, make, accelerator):
    model, optimizer, gradients = trained(make, device=device)
    slots = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    live = [*model.parameters(), *slots]
    area = StagingArea(accelerator=accelerator())
    train_overlapped(
        area, model, optimizer, gradients, deferred=addresses(live), rounds=15, before=lambda: sleep(1_000_000)
    )
    area.close()


def test_a_write_that_moves_no_version_is_seen(device):
    parameter = torch.zeros(MIB, device=device)
    area = StagingArea(accelerator=Full())
    staged = area.begin(tree_of({"p": parameter}), deferred=addresses([parameter]))
    parameter.data.add_(1)
    staged.barrier()
    staged.wait()
    assert staged.is_torn


@pytest.mark.only_cuda
def test_a_replay_of_a_recorded_graph_before_the_barrier_is_seen(device):
    parameter = torch.zeros(MIB, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        parameter.add_(1)
    parameter.zero_()
    torch.cuda.synchronize()
    staged = StagingArea(accelerator=Full()).begin(tree_of({"p": parameter}), deferred=addresses([parameter]))
    graph.replay()
    staged.barrier()
    staged.wait()
    assert staged.is_torn


@HAS_ROOM
@pytest.mark.only_cuda
def test_an_optimizer_that_runs_within_backward_on_another_stream_is_awaited(device, accelerator):
    side, parameter = torch.cuda.Stream(), torch.zeros(MIB, device=device)
    for _ in range(20):
        with torch.cuda.stream(side):
            sleep(5_000_000)
            parameter.add_(1)
        staged = StagingArea(accelerator=accelerator()).take(tree_of({"p": parameter}))
        held = parameter.cpu()
        with torch.cuda.stream(side):
            parameter.add_(1)  # It waits for no other stream.
        assert_holds(staged, {"p": held})
        torch.cuda.synchronize()


@HAS_ROOM
def test_a_tensor_that_is_freed_after_the_copy_began_is_copied_as_it_was(device, accelerator):
    live = torch.full((4 * MIB,), 3.0, device=device)
    sleep()
    staged = StagingArea(accelerator=accelerator()).begin(tree_of({"p": live}), deferred=addresses([live]))
    del live
    gc.collect()
    others = [torch.zeros(4 * MIB, device=device) for _ in range(4)]
    staged.barrier()
    staged.wait()
    assert len(others) == 4
    assert_holds(staged, {"p": torch.full((4 * MIB,), 3.0)})
