"""Copies the state at a safe point into a staging buffer, so that training continues during the write.

If a device has enough free memory for a copy of its state, the state is first copied within the device. Training waits
only for this copy. If a device has too little free memory, `take` blocks for about one copy to the host. `begin` then
blocks only for tensors that a forward pass may change. Tensors that only an optimizer changes are copied in the
background. Before each optimizer step, `Staged.barrier` waits for the copies of these tensors.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.layout import ShardLayout
from segue.checkpoints.format.state_tree import Json, encode_tree
from segue.checkpoints.saving.accelerator import Accelerator, Copy, TorchAccelerator
from segue.checkpoints.saving.gathering import Pair
from segue.checkpoints.saving.ipc import StagingBuffer
from segue.checkpoints.saving.partition import Partition, RankState
from segue.checkpoints.saving.staged_layout import StagedLayout, copy_all, copy_now, laid_out, touch
from segue.checkpoints.saving.tracing import span

_LOOKS, _MOST_LOOKED_AT, _MOST_ON_DEVICE = 64, 256, 32
"""Limits of the comparison at the barrier: values per tensor, number of tensors, and number of device tensors."""


@dataclass(frozen=True)
class Late:
    """A tensor that must not change between the safe point and the barrier."""

    live: torch.Tensor
    version: int
    looks: torch.Tensor | None
    """A few values of the tensor at the safe point."""
    is_on_device: bool = False

    def has_changed(self) -> bool:
        """Whether the tensor's version or one of its recorded values has changed.

        Torch increments the version of a tensor at each change, except changes through `.data`. A comparison of a few
        values detects changes through `.data`. Values on a device are compared later.
        """
        if self.live._version != self.version:
            return True
        return self.looks is not None and not self.is_on_device and not torch.equal(looks_at(self.live), self.looks)


def guarded(tensors: list[torch.Tensor], accelerator: Accelerator) -> list[Late]:
    """Return a record of each tensor at the safe point. For the largest tensors, the record contains a few values."""
    shown = [tensor for tensor in tensors if tensor.is_contiguous() and not tensor.is_conj()]
    on_device = [accelerator.has(tensor) for tensor in shown]
    largest: set[int] = set()
    for count, is_there in ((_MOST_LOOKED_AT, False), (_MOST_ON_DEVICE, True)):
        group = [tensor for tensor, is_on in zip(shown, on_device, strict=True) if is_on is is_there]
        largest |= {id(tensor) for tensor in heapq.nlargest(count, group, key=torch.Tensor.numel)}
    return [Late(t, t._version, looks_at(t) if id(t) in largest else None, accelerator.has(t)) for t in tensors]


def looks_at(tensor: torch.Tensor) -> torch.Tensor:
    """Return a few evenly spaced values of the tensor, as bytes."""
    stride = max(tensor.numel() // _LOOKS, 1)
    return tensor.detach().view(-1)[::stride].clone(memory_format=torch.contiguous_format).view(torch.uint8)


@dataclass
class Staged:
    """The state of one safe point in a staging buffer. Call `wait` before you read the bytes."""

    staging_buffer: StagingBuffer
    layout: ShardLayout
    skeletons: dict[str, Json]
    partition_hash: str = ""
    """Hash of the assignment of tensors to ranks. All ranks with the same assignment have the same hash."""
    is_torn: bool = False
    """Whether the state changed during the copy, so that the staged state must not be committed."""
    _late: list[Late] = field(default_factory=list)
    _copied: threading.Event = field(default_factory=threading.Event)
    _passed: threading.Event = field(default_factory=threading.Event)
    _device_copies: Sequence[Copy] = ()
    _device_looks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """A few values of each device tensor, at the safe point and at the barrier."""

    def barrier(self) -> None:
        """Block until the live tensors are copied. Call this method before you change a live tensor."""
        if self._passed.is_set():
            return
        self._copied.wait()
        for copy in self._device_copies:
            copy.hold_back_device()
        self.is_torn = self.is_torn or any(late.has_changed() for late in self._late)
        # Reading these values does not wait for a device; work that the training thread launches later runs after it.
        on_device = [late for late in self._late if late.is_on_device and not self.is_torn]
        self._device_looks = [(late.looks, looks_at(late.live)) for late in on_device if late.looks is not None]
        self._late = []
        self._passed.set()

    def wait(self) -> None:
        """Block until all tensors are copied.

        After that, `is_torn` states whether the state changed during the copy.
        """
        with span("wait for the copy"):
            self._copied.wait()
            self._passed.wait()
            for copy in self._device_copies:
                copy.wait()
        self.is_torn = self.is_torn or any(not torch.equal(*looks) for looks in self._device_looks)
        self._device_looks = []


class Encoded(NamedTuple):
    """A state tree that was encoded in advance. The tensors of the tree are not copied yet."""

    skeleton: Json
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, name: str, tree: Any) -> Encoded:
        """Encode the tree of the component with this name.

        Raises:
            UnsupportedStateError: the tree cannot be stored.
        """
        tensors: dict[str, torch.Tensor] = {}
        return cls(encode_tree(tree, path=name, tensors=tensors), tensors)


class StagingArea:
    """One or two staging buffers with the layout of a state.

    If the tensors of the state change, the buffers get a new layout.
    """

    def __init__(
        self, *, staging_buffers: int = 1, partition: Partition | None = None, accelerator: Accelerator | None = None
    ) -> None:
        """`partition` selects the part of the state that this rank stores. None means the whole state."""
        self._partition = partition or Partition()
        self._accelerator = accelerator or TorchAccelerator()
        self._free = list(range(staging_buffers))
        self._plans: dict[int, StagedLayout] = {}
        self._lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self._is_awaited = threading.Event()
        """Set while a thread waits for the memory. The memory is then prepared without pauses."""

    @property
    def is_free(self) -> bool:
        """Whether a staging buffer is free for the next safe point."""
        return bool(self._free)

    @property
    def is_ready(self) -> bool:
        """Whether a save can use the memory from `prepare` without waiting."""
        return self._warming is None or not self._warming.is_alive()

    def prepare(self, trees: Mapping[str, Any]) -> None:
        """Allocate memory for this state in the background, because the first touch of memory takes ten times as long
        as a copy.

        Raises:
            UnsupportedStateError, StateTooLargeError: the state cannot be stored, so the first save would fail.
        """
        state = self._rank_state(trees, self._partition)
        plans = [self._plan_for(number, state) for number in self._free]
        self._is_awaited.clear()
        given = (plans, self._is_awaited.wait)
        self._warming = threading.Thread(target=touch, args=given, name="segue-staging-buffer", daemon=True)
        self._warming.start()

    @paused_collector()
    def take(self, trees: Mapping[str, Any], *, is_whole: bool = False) -> Staged:
        """Copy all tensors before this method returns. A staging buffer must be free. If `is_whole` is true, this rank
        stores the parts of all ranks.

        Raises:
            UnsupportedStateError, StateTooLargeError: the state cannot be stored. Nothing was copied.
        """
        staged, plan, live = self._start(trees, Partition() if is_whole else self._partition)
        plan.fill(live)
        return _whole(staged, ())

    @paused_collector()
    def begin(self, trees: Mapping[str, Any], *, deferred: frozenset[int]) -> Staged:
        """Copy all tensors. The tensors at the addresses in `deferred` are copied while training continues.

        Raises:
            UnsupportedStateError, StateTooLargeError: the state cannot be stored. Nothing was copied.
        """
        staged, plan, live = self._start(trees, self._partition)
        if (copies := plan.copy_within(live)) is not None:
            return _whole(staged, copies)
        pairs = list(zip(plan.views, live, strict=True))
        is_late = [tensor.data_ptr() in deferred for tensor in live]
        now = [pair for pair, late in zip(pairs, is_late, strict=True) if not late]
        later = [pair for pair, late in zip(pairs, is_late, strict=True) if late]
        device = self._accelerator
        if plan.device is not None:
            with span("wait for the device"):
                device.drain(live)  # Work on other streams may change the state too.
        with span("copy", is_locked=plan.is_locked):
            copy_now(now, device)
        with span("guard"):
            staged._late = guarded([tensor for _, tensor in later], device)
        with span("begin to copy", is_locked=plan.is_locked):
            plan.under_way = device.copy_aside([pair for pair in later if device.has(pair[1])])
            staged._device_copies = plan.under_way
        on_host = [pair for pair in later if not device.has(pair[1])]
        threading.Thread(target=_copy_late, args=(staged, on_host), name="segue-stage", daemon=True).start()
        return staged

    def release(self, staged: Staged) -> None:
        """Release a staging buffer whose bytes are no longer needed."""
        with self._lock:
            self._free.append(staged.staging_buffer.number)

    def close(self) -> None:
        """Free all memory of the staging buffers."""
        self._wait_for_memory()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def _start(self, trees: Mapping[str, Any], partition: Partition) -> tuple[Staged, StagedLayout, list[torch.Tensor]]:
        state = self._rank_state(trees, partition)
        self._wait_for_memory()
        plan = self._plan_for(self._free[-1], state)
        plan.lock()
        with self._lock:
            self._free.remove(plan.staging_buffer.number)
        staged = Staged(plan.staging_buffer, plan.layout, state.skeletons, state.partition_hash)
        return staged, plan, list(state.tensors.values())

    def _wait_for_memory(self) -> None:
        if self._warming is not None:
            self._is_awaited.set()
            with span("wait for the memory"):
                self._warming.join()
            self._warming = None

    def _rank_state(self, trees: Mapping[str, Any], partition: Partition) -> RankState:
        live: dict[str, torch.Tensor] = {}
        with span("encode"):
            skeletons = {name: _encoded(name, tree, live) for name, tree in trees.items()}
        return partition.of(live, skeletons)

    def _plan_for(self, number: int, state: RankState) -> StagedLayout:
        plan = self._plans.get(number)
        if plan is not None and plan.fits(state.tensors) and plan.layout.slices == state.slices:
            return plan
        if plan is not None:
            plan.close()
        self._plans[number] = laid_out(number, state, self._accelerator)
        return self._plans[number]


def _encoded(name: str, tree: Any, live: dict[str, torch.Tensor]) -> Json:
    if not isinstance(tree, Encoded):
        return encode_tree(tree, path=name, tensors=live)
    live.update(tree.tensors)
    return tree.skeleton


def _whole(staged: Staged, copies: Sequence[Copy]) -> Staged:
    """Mark the staged state as complete after these copies. Later changes of the tensors do not affect the staged
    state.
    """
    staged._device_copies = copies
    staged._copied.set()
    staged._passed.set()
    return staged


def _copy_late(staged: Staged, pairs: Sequence[Pair]) -> None:
    is_whole = False
    try:
        copy_all([view for view, _ in pairs], [tensor for _, tensor in pairs])
        is_whole = True
    finally:
        staged.is_torn = staged.is_torn or not is_whole
        staged._copied.set()
