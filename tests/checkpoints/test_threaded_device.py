"""Staging from a device that works late and in any order holds the safe point, or is known to be torn."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from segue.checkpoints.saving.gathering import gathered
from segue.checkpoints.saving.staging import StagingArea
from tests.checkpoints.saving.threaded_device import ThreadedDevice
from tests.checkpoints.test_staging import (
    ODD,
    OPTIMIZERS,
    addresses,
    assert_holds,
    begin_and_wait,
    train_overlapped,
    trained,
    tree_of,
)


@pytest.fixture
def device():
    made = ThreadedDevice(delay_seconds=0.002)
    yield made
    made.close()


def test_tensors_of_every_kind_some_of_them_on_the_device_are_copied_before_they_are_overwritten(device):
    tensors = {name: tensor.detach().clone() for name, tensor in ODD.items()}
    for name in list(tensors)[::2]:
        device.put(tensors[name])
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    staged = StagingArea(accelerator=device).take(tree_of(tensors))
    for tensor in tensors.values():
        tensor.zero_()
    assert_holds(staged, expected)


def test_small_tensors_are_gathered_so_that_few_copies_are_made_and_large_ones_are_not(device):
    kinds = [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.int64, torch.uint8]
    tensors = {f"{number}": torch.randn(number % 40).to(kinds[number % 6]) for number in range(2000)}
    tensors["nothing"], tensors["one"] = torch.zeros(3, 0), torch.tensor(2.5)
    tensors["turned"] = torch.randn(30, 20).t()
    tensors["large"] = torch.randn(2**19)
    for tensor in tensors.values():
        device.put(tensor)
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    staged = StagingArea(accelerator=device).take(tree_of(tensors))
    assert_holds(staged, expected)
    assert device.copies <= 4


@pytest.mark.matrix
def test_what_is_gathered_stays_small_and_without_room_for_it_each_tensor_is_copied(monkeypatch):
    apart = list(zip(torch.zeros(9, 20)[:, :10], torch.randn(9, 10), strict=True))
    assert len(list(gathered(apart))) == 9
    tensors, flat = torch.randn(300, 2**17), torch.zeros(300 * 2**17)  # Each half the limit of a small one.
    pairs = list(zip(flat.split(2**17), tensors, strict=True))
    sizes = []
    for view, tensor in gathered(pairs):
        sizes.append(tensor.nbytes)
        view.copy_(tensor)
    assert torch.equal(flat.view(300, -1), tensors)
    assert max(sizes) <= 64 * 2**20
    assert len(sizes) == 3

    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "empty", refuse)
    assert len(list(gathered(pairs))) == 300


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_write_that_another_stream_still_has_to_make_belongs_to_the_safe_point(device, is_overlapped):
    average, parameter = device.put(torch.zeros(1000)), device.put(torch.zeros(1000))
    device.launch(lambda: average.fill_(1.0))
    area, tree = StagingArea(accelerator=device), tree_of({"average": average, "parameter": parameter})
    staged = begin_and_wait(area, tree, addresses([average, parameter])) if is_overlapped else area.take(tree)
    assert not staged.is_torn
    assert_holds(staged, {"average": torch.ones(1000), "parameter": torch.zeros(1000)})


@pytest.mark.matrix
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(("seed", "has_room"), [(0, False), (1, False), (2, True)])
def test_an_overlapped_copy_holds_the_safe_point_though_the_next_step_is_launched_at_once(make, seed, has_room):
    device = ThreadedDevice(delay_seconds=0.001, seed=seed, has_room=has_room)
    model, optimizer, gradients = trained(make)
    slots = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    live = [*model.parameters(), *slots]
    for tensor in live:
        device.put(tensor)
    area = StagingArea(accelerator=device)
    train_overlapped(area, model, optimizer, gradients, deferred=addresses(live), rounds=10)
    area.close()
    device.close()


def test_a_write_that_moves_no_version_is_seen_once_the_device_has_answered(device):
    parameter = device.put(torch.zeros(10_000))
    area = StagingArea(accelerator=device)
    staged = area.begin(tree_of({"p": parameter}), deferred=addresses([parameter]))
    parameter.data.add_(1)
    staged.barrier()
    staged.wait()
    assert staged.is_torn
    area.release(staged)
    again = area.take(tree_of({"p": parameter}))
    assert_holds(again, {"p": torch.ones(10_000)})


@pytest.mark.matrix
def test_a_tensor_that_is_freed_after_the_copy_began_is_copied_as_it_was(device):
    live = device.put(torch.full((100_000,), 3.0))
    staged = StagingArea(accelerator=device).begin(tree_of({"p": live}), deferred=addresses([live]))
    del live
    gc.collect()
    others = [torch.zeros(100_000) for _ in range(20)]
    staged.barrier()
    staged.wait()
    assert not staged.is_torn
    assert len(others) == 20
    assert_holds(staged, {"p": torch.full((100_000,), 3.0)})


def test_memory_is_locked_beside_the_training_thread_once_and_freed_at_the_end(device):
    live = {"p": device.put(torch.zeros(1000))}
    area = StagingArea(accelerator=device, staging_buffers=2)
    area.prepare(tree_of(live))
    for _ in range(3):
        area.release(begin_and_wait(area, tree_of(live), addresses(live.values())))
    assert (len(device.locked), device.threads) == (2, {"segue-staging-buffer"})
    area.close()
    assert device.locked == []


def test_where_memory_cannot_be_locked_saves_go_on_and_it_is_asked_for_once():
    device = ThreadedDevice(can_lock=False)
    live = {"p": device.put(torch.ones(1000))}
    area = StagingArea(accelerator=device)
    for _ in range(3):
        staged = area.take(tree_of(live))
        assert_holds(staged, live)
        area.release(staged)
    assert (device.lock_calls, device.locked) == (1, [])
    area.close()
    device.close()


def test_memory_is_not_locked_for_a_state_that_no_device_holds(device):
    area = StagingArea(accelerator=device)
    area.take(tree_of({"p": torch.zeros(10)}))
    assert device.threads == set()
    area.close()


def test_on_a_device_with_room_an_overlapped_save_lets_training_go_on_before_the_copy_to_the_host():
    device = ThreadedDevice(has_room=True)
    parameter, may_copy, elsewhere = device.put(torch.zeros(1000)), threading.Event(), torch.ones(3)
    area, tree = StagingArea(accelerator=device), tree_of({"p": parameter, "host": elsewhere})
    drained = device.drain
    device.drain = lambda tensors: (drained(tensors), device.launch(may_copy.wait))
    staged = area.begin(tree, deferred=addresses([parameter]))
    staged.barrier()
    parameter.data.add_(1)
    elsewhere.add_(1)
    may_copy.set()
    staged.wait()
    assert not staged.is_torn
    assert_holds(staged, {"p": torch.zeros(1000), "host": torch.ones(3)})
    area.release(staged)
    device.drain = drained
    again = area.take(tree)  # A save that blocks.
    parameter.data.add_(1)
    assert_holds(again, {"p": torch.ones(1000), "host": torch.full((3,), 2.0)})


@pytest.mark.parametrize("has_room", [False, True])
def test_memory_is_freed_only_once_no_device_copies_into_it(has_room):
    device = ThreadedDevice(delay_seconds=0.2, has_room=has_room)
    parameter = device.put(torch.zeros(1000))
    area, tree = StagingArea(accelerator=device), tree_of({"p": parameter})
    area.release(area.take(tree))
    staged = area.begin(tree, deferred=addresses([parameter]))
    copies = staged._device_copies
    area.close()
    assert copies
    assert all(copy.done.is_set() for copy in copies)
    device.close()
