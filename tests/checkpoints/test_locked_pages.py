"""Locked pages by CUDA's rules, which a fake of its runtime holds: no copy across two locked ranges, no lock twice."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from segue.checkpoints.saving import accelerator as module
from segue.checkpoints.saving import gathering
from segue.checkpoints.saving.accelerator import TorchAccelerator
from segue.checkpoints.saving.staging import StagingArea
from tests.checkpoints.test_staging import ODD, assert_holds, tree_of

PIECE = 4096
INVALID, ALREADY_LOCKED, NOT_LOCKED, OUT_OF_MEMORY = 1, 712, 713, 2


class Cudart:
    """What the runtime knows of host memory: ranges by their first address."""

    def __init__(self):
        self.ranges: dict[int, int] = {}
        self.most_bytes = 2**62
        self.most_ranges_seen = 0

    def cudaHostRegister(self, address, size_bytes, flags):
        assert flags == 0
        if any(start < address + size_bytes and address < start + size for start, size in self.ranges.items()):
            return ALREADY_LOCKED
        if sum(self.ranges.values()) + size_bytes > self.most_bytes:
            return OUT_OF_MEMORY
        self.ranges[address] = size_bytes
        self.most_ranges_seen = max(self.most_ranges_seen, len(self.ranges))
        return 0

    def cudaHostUnregister(self, address):
        return 0 if self.ranges.pop(address, None) is not None else NOT_LOCKED

    def refuse_crossing(self, view):
        first, last = view.data_ptr(), view.data_ptr() + view.nbytes - 1
        homes = {start for start, size in self.ranges.items() for at in (first, last) if start <= at < start + size}
        if view.nbytes and len(homes) > 1:
            raise RuntimeError("CUDA error: invalid argument")


class OnCuda(TorchAccelerator):
    """Takes tensors of the processor for those of a device."""

    def has(self, tensor):
        return True

    def drain(self, tensors):
        return

    def copy_aside(self, pairs):
        self._copy(pairs)
        return []

    def lock_pages(self, memory, *, device, pause=module.no_pause):
        return super().lock_pages(memory, device=torch.device("cuda", 0), pause=pause)


@pytest.fixture
def cudart(monkeypatch):
    made, copy = Cudart(), torch.Tensor.copy_

    def checked(view, source, non_blocking=False):
        made.refuse_crossing(view)
        return copy(view, source, non_blocking=non_blocking)

    monkeypatch.setattr(module, "_PIECE_BYTES", PIECE)
    monkeypatch.setattr(module, "_clear_error", lambda device: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "copy_", checked)
    return made


STATES = {
    "small ones": {f"w{n}": torch.randn(n % 70) for n in range(200)},
    "one over many pieces": {"w": torch.randn(7 * PIECE)},
    "two with borders within": {"a": torch.randn(1000, 3), "b": torch.randn(5 * PIECE + 3).bfloat16()},
    "of eight bytes and of one": {"a": torch.arange(2 * PIECE), "b": torch.ones(3 * PIECE + 1, dtype=torch.bool)},
    "exactly one piece": {"a": torch.randn(PIECE // 4), "b": torch.randn(PIECE // 4)},
    "turned": {"w": torch.randn(300, 100).t()},
    "conjugate": {"w": torch.randn(3000, dtype=torch.complex64).conj()},
    "nothing": {"w": torch.empty(0), "one": torch.tensor(1.0)},
}


@pytest.mark.parametrize("tensors", STATES.values(), ids=STATES)
def test_no_copy_reaches_from_one_locked_range_into_another(cudart, tensors):
    area = StagingArea(accelerator=OnCuda())
    area.prepare(tree_of(tensors))
    for _ in range(2):
        staged = area.take(tree_of(tensors))
        assert_holds(staged, tensors)
        area.release(staged)
    begun = area.begin(tree_of(tensors), deferred=frozenset(each.data_ptr() for each in tensors.values()))
    begun.barrier()
    begun.wait()
    assert_holds(begun, tensors)
    area.close()
    assert cudart.ranges == {}


class Kept(OnCuda):
    """Has room for a copy, and copies to the host as late as it may."""

    def room_for(self, pairs):
        room = gathering.room_on(torch.device("cpu"), [view for view, _ in pairs], range(len(pairs)))
        return SimpleNamespace(copy=lambda live: (room.fill(live), [Late(lambda: self._copy(room.moves))])[1])


class Late:
    def __init__(self, copy):
        self.wait = copy

    def hold_back_device(self):
        return


def test_what_is_kept_on_the_device_is_the_state_of_the_safe_point(cudart, monkeypatch):
    monkeypatch.setattr(gathering, "memory_on", lambda device, size: torch.empty(size, dtype=torch.uint8))
    live = {name: each.detach().clone() for name, each in ODD.items() if name != "overlapping itself"}
    live["large"] = torch.randn(3 * PIECE)
    area = StagingArea(accelerator=Kept())
    for begins in (False, True):
        expected = {name: each.clone() for name, each in live.items()}
        staged = area.begin(tree_of(live), deferred=frozenset()) if begins else area.take(tree_of(live))
        for each in live.values():
            each.zero_()
        staged.wait()
        assert_holds(staged, expected)
        area.release(staged)
        live = {name: torch.ones_like(each) for name, each in live.items()}
    area.close()


def test_where_a_part_cannot_be_locked_none_is_and_the_bytes_are_the_same(cudart, caplog):
    cudart.most_bytes = 5 * PIECE
    tensors = {"w": torch.randn(7 * PIECE)}
    area = StagingArea(accelerator=OnCuda())
    assert_holds(area.take(tree_of(tensors)), tensors)
    assert cudart.most_ranges_seen == 5
    assert cudart.ranges == {}
    assert "refused to lock" in caplog.text


@pytest.mark.matrix
def test_memory_is_unlocked_with_its_last_owner_where_nobody_closes_the_area(cudart):
    tensors = {"w": torch.randn(3 * PIECE)}
    area = StagingArea(accelerator=OnCuda())
    staged = area.take(tree_of(tensors))
    del area
    gc.collect()
    assert cudart.ranges, "the bytes may still be read, and a copy may be under way"
    assert_holds(staged, tensors)
    del staged
    gc.collect()
    assert cudart.ranges == {}


def test_memory_whose_former_owner_has_not_unlocked_it_is_locked_anew(cudart):
    memory, device = torch.zeros(4 * PIECE, dtype=torch.uint8), torch.device("cuda", 0)
    cudart.ranges[memory.data_ptr() + PIECE] = PIECE
    locks = TorchAccelerator()
    assert locks.lock_pages(memory, device=device)
    assert sorted(cudart.ranges) == [memory.data_ptr() + n * PIECE for n in range(4)]
    locks.unlock_pages(memory)
    assert cudart.ranges == {}


def test_training_goes_on_between_two_pieces_until_somebody_waits_for_the_memory(cudart):
    asked = []
    memory = torch.zeros(3 * PIECE + 1, dtype=torch.uint8)
    TorchAccelerator().lock_pages(memory, device=torch.device("cuda", 0), pause=asked.append)
    assert len(asked) == 4
    assert min(asked) >= 0
