"""What is staged is the state of one safe point, whatever training does meanwhile, or it is known to be torn."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from segue.checkpoints.format.layout import read_layout
from segue.checkpoints.format.snapshot import digest, take
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import UnsupportedStateError
from segue.stores import LocalStore

BASE = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
ODD = {
    "of no dimension": torch.tensor(3.5),
    "empty": torch.empty(0, 5),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": BASE.bfloat16(),
    "float16": BASE.half(),
    "float8": BASE.to(torch.float8_e4m3fn),
    "another float8": BASE.to(torch.float8_e5m2),
    "complex": torch.complex(BASE, -BASE),
    "conjugate": torch.complex(BASE, BASE).conj(),
    "negated": torch.complex(BASE, BASE).conj().imag,
    "uint64": torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
    "transposed": BASE.t(),
    "every other": BASE[:, ::2],
    "channels last": torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": BASE[:1].expand(5, 4),
    "overlapping itself": torch.as_strided(torch.arange(6.0), (3, 3), (1, 1)),
    "a slice of a large one": torch.arange(10_000.0)[77:80],
    "a leaf with a gradient": torch.ones(3, requires_grad=True),
    "with a history": torch.ones(3, requires_grad=True) * 2,
    "a parameter": torch.nn.Parameter(torch.randn(2, 2)),
}


def tree_of(tensors):
    """A state like a real one: tensors under names, next to numbers and arrays."""
    return {
        "model": {"state": dict(tensors)},
        "rng.numpy": {"words": np.arange(624, dtype=np.uint32)},
        "progress": {"step": 7},
    }


def bytes_of(tensor):
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)


def raw(tensor):
    return bytes_of(tensor).view(torch.uint8).numpy().tobytes()


def staged_bytes(staged, name):
    _, start, size_bytes = staged.layout.placed[name]
    return bytes(staged.staging_buffer.memory[start : start + size_bytes])


def assert_holds(staged, tensors):
    """The staging buffer holds exactly these tensors, and its header lists them."""
    staged.wait()
    shard_file = memoryview(bytes(staged.staging_buffer.memory))[: staged.layout.size_bytes]
    assert dict(read_layout(shard_file).placed) == dict(staged.layout.placed)
    for name, tensor in tensors.items():
        placed = staged.layout.placed[f"model.state.{name}"]
        assert placed.spec == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        assert staged_bytes(staged, f"model.state.{name}") == raw(tensor), name


def addresses(tensors):
    return frozenset(tensor.data_ptr() for tensor in tensors)


def begin_and_wait(area, tree, deferred):
    staged = area.begin(tree, deferred=deferred)
    staged.barrier()
    staged.wait()
    return staged


@pytest.mark.parametrize("name", ODD)
def test_a_tensor_of_any_kind_is_staged_bit_for_bit_blocking_and_overlapped(name):
    tensors = {name: ODD[name], "next to it": BASE}
    assert_holds(StagingArea().take(tree_of(tensors)), tensors)
    overlapped = begin_and_wait(StagingArea(), tree_of(tensors), addresses(tensors.values()))
    assert not overlapped.is_torn
    assert_holds(overlapped, tensors)


def test_all_of_them_at_once_and_tied_ones_twice():
    tensors = ODD | {"tied": BASE, "tied too": BASE}
    assert_holds(StagingArea().take(tree_of(tensors)), tensors)
    assert_holds(begin_and_wait(StagingArea(), tree_of(tensors), addresses([BASE])), tensors)


@pytest.mark.parametrize("name", sorted(ODD.keys() - {"conjugate"}))
def test_its_digest_is_that_of_the_live_state(name, tmp_path):
    tree = tree_of({name: ODD[name], "next to it": BASE})
    written = InlineWriter([LocalStore(tmp_path).create()]).write(
        StagingArea().take(tree), Save("run", "seg000-a1-e1", 1)
    )
    assert written.components == digest(take(tree)).components == digest(take(tree, copy=False)).components


def test_a_conjugate_tensor_has_a_digest_too():
    value = torch.complex(BASE, BASE)
    tree, plain = {"model": {"w": value.conj()}}, {"model": {"w": value.conj().resolve_conj()}}
    assert digest(take(tree, copy=False)) == digest(take(plain, copy=False))


def trained(make, *, device="cpu"):
    """A model that has done a step, its optimizer, and a function that does one more."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 64)).to(
        device
    )
    optimizer = make(model.parameters())
    features = torch.randn(16, 64, device=device)

    def gradients():
        optimizer.zero_grad()
        model(features).square().mean().backward()

    gradients()
    optimizer.step()
    return model, optimizer, gradients


OPTIMIZERS = {
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "for each": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "one by one": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False, amsgrad=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_overlapped_staging_holds_the_safe_point_though_the_optimizer_steps_right_after(make):
    model, optimizer, gradients = trained(make)
    state = [value for slots in optimizer.state.values() for value in slots.values()]
    deferred = addresses([*model.parameters(), *(value for value in state if isinstance(value, torch.Tensor))])
    train_overlapped(StagingArea(), model, optimizer, gradients, deferred=deferred, rounds=3)


def train_overlapped(area, model, optimizer, gradients, *, deferred, rounds, before=lambda: None):
    """So many steps, each right after a copy began; each copy holds what was there when it began."""
    for _ in range(rounds):
        tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        expected = take(tree)
        before()
        staged = area.begin(tree, deferred=deferred)
        gradients()
        staged.barrier()
        optimizer.step()
        staged.wait()
        assert not staged.is_torn
        held = {name: staged_bytes(staged, name) for name in expected.tensors}
        assert held == {name: raw(tensor) for name, tensor in expected.tensors.items()}
        area.release(staged)


def test_what_a_forward_pass_changes_is_copied_before_it_begins():
    parameter, buffer = torch.zeros(2_000_000), torch.zeros(2_000_000)
    staged = StagingArea().begin(tree_of({"p": parameter, "b": buffer}), deferred=addresses([parameter]))
    buffer += 1
    staged.barrier()
    parameter += 1
    staged.wait()
    assert not staged.is_torn
    assert_holds(staged, {"p": torch.zeros(2_000_000), "b": torch.zeros(2_000_000)})


@pytest.mark.parametrize("change", [torch.Tensor.cos_, lambda t: t.add_(1), lambda t: t.copy_(torch.ones_like(t))])
def test_a_change_in_the_middle_of_the_copy_is_recognised(change):
    """Whichever of the two is faster: what counts as whole holds the old values only."""
    live = {"a": torch.zeros(200_000), "b": torch.zeros(4_000_000)}
    area = StagingArea()
    for _ in range(12):
        live["b"].zero_()
        staged = area.begin(tree_of(live), deferred=addresses(live.values()))
        change(live["b"])
        staged.barrier()
        staged.wait()
        if not staged.is_torn:
            assert not any(staged_bytes(staged, "model.state.b"))
        area.release(staged)


def test_the_copy_is_done_when_the_barrier_lets_go():
    live = {f"w{n}": torch.full((1_000_000,), float(n)) for n in range(4)}
    area = StagingArea()
    for _ in range(5):
        staged = area.begin(tree_of(live), deferred=addresses(live.values()))
        staged.barrier()
        for tensor in live.values():
            tensor.data.add_(1)  # Moves no version: only the barrier keeps this from being copied.
        staged.wait()
        assert not staged.is_torn
        assert_holds(staged, {name: tensor - 1 for name, tensor in live.items()})
        area.release(staged)


def test_a_state_that_gets_other_tensors_is_laid_out_again():
    area, tensors = StagingArea(), {"a": torch.ones(3)}
    for change in (
        {"b": torch.zeros(2, 2)},
        {"a": torch.ones(5)},
        {"a": torch.ones(5, dtype=torch.float64)},
        {"b": torch.zeros(4)},
        {},
    ):
        tensors |= change
        staged = area.take(tree_of(tensors))
        assert_holds(staged, tensors)
        area.release(staged)
    del tensors["b"]
    assert_holds(area.take(tree_of(tensors)), tensors)


def test_as_long_as_the_tensors_stay_the_same_the_memory_does():
    area, live = StagingArea(), {"a": torch.zeros(3)}
    area.prepare(tree_of(live))
    first = area.take(tree_of(live))
    area.release(first)
    live["a"] = torch.ones(3)
    second = area.take(tree_of(live))
    assert second.staging_buffer is first.staging_buffer
    assert second.layout is first.layout
    assert_holds(second, live)


def test_two_staging_buffers_hold_two_safe_points_until_they_are_given_back():
    area, live = StagingArea(staging_buffers=2), {"w": torch.zeros(1000)}
    area.prepare(tree_of(live))
    first = area.take(tree_of(live))
    assert area.is_free
    live["w"] += 1
    second = begin_and_wait(area, tree_of(live), addresses(live.values()))
    assert not area.is_free
    live["w"] += 1
    assert_holds(first, {"w": torch.zeros(1000)})
    assert_holds(second, {"w": torch.ones(1000)})
    area.release(first)
    third = area.take(tree_of(live))
    assert third.staging_buffer is first.staging_buffer
    assert_holds(third, {"w": torch.full((1000,), 2.0)})
    area.release(third)
    area.take(tree_of(live | {"v": torch.zeros(5000)}))  # Laid out again, in the one that is free.
    assert_holds(second, {"w": torch.ones(1000)})


def test_what_is_not_data_is_refused_and_the_staging_buffer_stays_free():
    area = StagingArea()
    for stage in (area.prepare, area.take, lambda tree: area.begin(tree, deferred=frozenset())):
        with pytest.raises(UnsupportedStateError, match=r"extra\.hook"):
            stage({"extra": {"hook": print}, "model": {"w": torch.ones(2)}})
        assert area.is_free
    assert_holds(area.take(tree_of({"w": torch.ones(2)})), {"w": torch.ones(2)})


def test_staging_leaves_the_garbage_collector_as_it_was():
    for switch, expected in ((gc.disable, False), (gc.enable, True)):
        switch()
        try:
            StagingArea().take(tree_of({"w": torch.ones(2)}))
            assert gc.isenabled() is expected
        finally:
            gc.enable()


def staging_buffers_open():
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The one by which the folder was listed is gone by now.
            found += "segue-staging-buffer" in str(link.readlink())
    return found


@pytest.mark.matrix
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors where Linux lists them")
def test_neither_new_layouts_nor_the_end_leave_descriptors_or_threads_behind():
    gc.collect()
    before, threads = staging_buffers_open(), threading.active_count()
    area = StagingArea(staging_buffers=2)
    for count in range(1, 15):
        tensors = {f"w{n}": torch.zeros(100) for n in range(count)}
        area.release(begin_and_wait(area, tree_of(tensors), addresses(tensors.values())))
        assert staging_buffers_open() - before <= 4
    area.prepare(tree_of({"w": torch.zeros(1)}))
    area.close()
    gc.collect()
    assert staging_buffers_open() == before
    assert threading.active_count() <= threads + 1  # The last copying thread may be on its way out.
