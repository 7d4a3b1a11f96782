"""Staging: copying the state of a safe point into a staging buffer, so that training may continue while it is written.

If a device has room for a copy of its state, the state is copied there first, and training waits only for this copy.
Otherwise `take` blocks for about one copy to the host. `begin` blocks only for tensors that a forward pass may change.
Tensors that only an optimizer changes are copied in the background; before any optimizer's step, `Staged.barrier` waits
for their copies.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.layout import PAGE_BYTES, ShardLayout, TensorSpec, layout_of
from segue.checkpoints.format.state_tree import Json, encode_tree
from segue.checkpoints.saving.accelerator import Accelerator, Copy, Room, TorchAccelerator, no_pause
from segue.checkpoints.saving.copy_cpu import Copier, copy_all
from segue.checkpoints.saving.gathering import Pair
from segue.checkpoints.saving.guard import Late, guarded, looks_at
from segue.checkpoints.saving.partition import Partition, RankState
from segue.checkpoints.saving.shared_memory import StagingBuffer
from segue.checkpoints.saving.tracing import span

_shape_of = operator.attrgetter("shape")
_dtype_of = operator.attrgetter("dtype")


@dataclass
class Staged:
    """One safe point's state in a staging buffer. Its bytes may be read after `wait`."""

    staging_buffer: StagingBuffer
    layout: ShardLayout
    skeletons: dict[str, Json]
    partition_hash: str = ""
    """Hash of the assignment of tensors to ranks; the same on all ranks that agree on it."""
    is_torn: bool = False
    """The state changed while it was being copied; it must not be committed."""
    _late: list[Late] = field(default_factory=list)
    _copied: threading.Event = field(default_factory=threading.Event)
    _passed: threading.Event = field(default_factory=threading.Event)
    _device_copies: Sequence[Copy] = ()
    _device_looks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """A few values of tensors on a device: at the safe point, and at the barrier."""

    def barrier(self) -> None:
        """Block until the live tensors are copied; to be called before anything changes them."""
        if self._passed.is_set():
            return
        self._copied.wait()
        for copy in self._device_copies:
            copy.hold_back_device()
        self.is_torn = self.is_torn or any(late.has_changed() for late in self._late)
        # This look does not wait for a device. Work that the training thread launches later runs after it.
        on_device = [late for late in self._late if late.is_on_device and not self.is_torn]
        self._device_looks = [(late.looks, looks_at(late.live)) for late in on_device if late.looks is not None]
        self._late = []
        self._passed.set()

    def wait(self) -> None:
        """Block until all is copied and the barrier has decided whether the copy is torn."""
        with span("wait for the copy"):
            self._copied.wait()
            self._passed.wait()
            for copy in self._device_copies:
                copy.wait()
        self.is_torn = self.is_torn or any(not torch.equal(*looks) for looks in self._device_looks)
        self._device_looks = []


@dataclass
class _StagedLayout:
    """A layout in one staging buffer, and the views that fill it."""

    staging_buffer: StagingBuffer
    layout: ShardLayout
    views: list[torch.Tensor]
    copier: Copier
    names: list[str]
    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    device: torch.device | None
    """The device of the first tensor that an accelerator holds; None if all are in the host's memory."""
    accelerator: Accelerator
    is_locked: bool | None = None
    """Whether the device copies directly into the staging buffer; None: not tried yet."""
    room: Room | None = None
    """Device memory for a copy of the tensors on devices."""
    _under_way: Sequence[Copy] = ()
    _unlock: Callable[[], object] = lambda: None

    def fits(self, live: Mapping[str, torch.Tensor]) -> bool:
        """Whether the state still has the same tensors."""
        tensors = live.values()
        return (
            self.names == list(live)
            and self.shapes == list(map(_shape_of, tensors))
            and self.dtypes == list(map(_dtype_of, tensors))
        )

    def fill(self, live: list[torch.Tensor]) -> None:
        """Copy everything; all is done on return."""
        if self.device is None:
            self.copier.copy(live)
            return
        with span("wait for the device"):
            self.accelerator.drain(live)  # Work on other streams may also change the state.
        with span("copy", bytes=self.layout.size_bytes, is_locked=self.is_locked):
            _copy_now(list(zip(self.views, live, strict=True)), self.accelerator)

    def copy_within(self, live: list[torch.Tensor]) -> Sequence[Copy] | None:
        """Copy everything, tensors on devices within their devices; the returned copies go from there to the host.

        None if a device has too little memory left; nothing was copied then.
        """
        if self.device is None:
            return None
        there = [number for number, tensor in enumerate(live) if self.accelerator.has(tensor)]
        if self.room is None:
            with span("make room"):
                self.room = self.accelerator.room_for([(self.views[number], live[number]) for number in there])
        if self.room is None:
            return None
        with span("wait for the device"):
            self.accelerator.drain(live)  # Work on other streams may also change the state.
        with span("copy within the device", bytes=self.layout.size_bytes):
            copies = self.room.copy([live[number] for number in there])
        if copies is None:
            self.room = None
            return None
        self._under_way = copies
        if len(there) < len(live):
            held = set(there)
            here = [number for number in range(len(live)) if number not in held]
            copy_all([self.views[number] for number in here], [live[number] for number in here])
        return copies

    def get_ready(self, *, pause: Callable[[float], object]) -> None:
        """Touch the memory, and lock it if a device copies into it, with pauses in which training continues."""
        memory = torch.frombuffer(self.staging_buffer.memory, dtype=torch.uint8)
        with span("touch memory", bytes=memory.nbytes):
            memory[len(self.layout.head) :].zero_()
        self.lock(pause=pause)

    def lock(self, *, pause: Callable[[float], object] = no_pause) -> None:
        """Lock the memory, unless that was already tried or no device copies into the memory."""
        if self.device is None or self.is_locked is not None:
            return
        memory = torch.frombuffer(self.staging_buffer.memory, dtype=torch.uint8)
        with span("lock memory", bytes=memory.nbytes) as facts:
            self.is_locked = facts["is_locked"] = self.accelerator.lock_pages(memory, device=self.device, pause=pause)
        if self.is_locked:
            # Memory that is unmapped while it is locked keeps its lock: copies to the memory that is mapped there next
            # would go to pages that nobody sees. So the last owner of a buffer unlocks it, even if nobody closes this
            # plan.
            unlock = weakref.finalize(self.staging_buffer, self.accelerator.unlock_pages, memory)
            unlock.atexit = False
            self._unlock = unlock

    def close(self) -> None:
        """Free the memory, once no device copies into it."""
        for copy in self._under_way:
            with suppress(RuntimeError):  # A device that has failed copies nothing more.
                copy.wait()
        self.room = None
        self._unlock()
        self.is_locked = None
        self.staging_buffer.close()


class Encoded(NamedTuple):
    """A state tree that was encoded in advance; its tensors are the live ones."""

    skeleton: Json
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, name: str, tree: Any) -> Encoded:
        """The tree of the component with this name.

        Raises:
            UnsupportedStateError: it cannot be stored.
        """
        tensors: dict[str, torch.Tensor] = {}
        return cls(encode_tree(tree, path=name, tensors=tensors), tensors)


class StagingArea:
    """One or two staging buffers, laid out for a state, and laid out again when the state gets other tensors."""

    def __init__(
        self, *, staging_buffers: int = 1, partition: Partition | None = None, accelerator: Accelerator | None = None
    ) -> None:
        """`partition` selects what this rank stores; without one, everything. `accelerator`: torch's by default."""
        self._partition = partition or Partition()
        self._accelerator = accelerator or TorchAccelerator()
        self._free = list(range(staging_buffers))
        self._plans: dict[int, _StagedLayout] = {}
        self._lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self._is_awaited = threading.Event()
        """Set once somebody waits for the memory to be ready: it is then prepared without pauses."""

    @property
    def is_free(self) -> bool:
        """Whether a staging buffer is free for the next safe point."""
        return bool(self._free)

    @property
    def is_ready(self) -> bool:
        """Whether the memory that `prepare` allocates can be used without waiting."""
        return self._warming is None or not self._warming.is_alive()

    def prepare(self, trees: Mapping[str, Any]) -> None:
        """Allocate memory for this state in the background: the first touch of memory costs ten times a copy.

        Raises:
            UnsupportedStateError, StateTooLargeError: the state cannot be stored; this is better known now than at the
                first save.
        """
        state = self._rank_state(trees)
        plans = [self._plan_for(number, state) for number in self._free]
        self._is_awaited.clear()
        given = (plans, self._is_awaited.wait)
        self._warming = threading.Thread(target=_touch, args=given, name="segue-staging-buffer", daemon=True)
        self._warming.start()

    @paused_collector()
    def take(self, trees: Mapping[str, Any]) -> Staged:
        """Copy everything now, so that training may continue; a staging buffer must be free.

        Raises:
            UnsupportedStateError, StateTooLargeError: it cannot be stored; nothing was taken.
        """
        staged, plan, live = self._start(trees)
        plan.fill(live)
        return _whole(staged, ())

    @paused_collector()
    def begin(self, trees: Mapping[str, Any], *, deferred: frozenset[int]) -> Staged:
        """Copy all tensors except those at the addresses in `deferred`, which are copied while training continues.

        Raises:
            UnsupportedStateError, StateTooLargeError: it cannot be stored; nothing was taken.
        """
        staged, plan, live = self._start(trees)
        if (copies := plan.copy_within(live)) is not None:
            return _whole(staged, copies)
        pairs = list(zip(plan.views, live, strict=True))
        is_late = [tensor.data_ptr() in deferred for tensor in live]
        now = [pair for pair, late in zip(pairs, is_late, strict=True) if not late]
        later = [pair for pair, late in zip(pairs, is_late, strict=True) if late]
        device = self._accelerator
        if plan.device is not None:
            with span("wait for the device"):
                device.drain(live)  # Work on other streams may also change the state.
        with span("copy", is_locked=plan.is_locked):
            _copy_now(now, device)
        with span("guard"):
            staged._late = guarded([tensor for _, tensor in later], device)
        with span("begin to copy", is_locked=plan.is_locked):
            plan._under_way = device.copy_aside([pair for pair in later if device.has(pair[1])])
            staged._device_copies = plan._under_way
        on_host = [pair for pair in later if not device.has(pair[1])]
        threading.Thread(target=_copy_late, args=(staged, on_host), name="segue-stage", daemon=True).start()
        return staged

    def release(self, staged: Staged) -> None:
        """Return the staging buffer once its bytes are no longer needed."""
        with self._lock:
            self._free.append(staged.staging_buffer.number)

    def close(self) -> None:
        """Free all memory."""
        self._wait_for_memory()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def _start(self, trees: Mapping[str, Any]) -> tuple[Staged, _StagedLayout, list[torch.Tensor]]:
        state = self._rank_state(trees)
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

    def _rank_state(self, trees: Mapping[str, Any]) -> RankState:
        live: dict[str, torch.Tensor] = {}
        with span("encode"):
            skeletons = {name: _encoded(name, tree, live) for name, tree in trees.items()}
        return self._partition.of(live, skeletons)

    def _plan_for(self, number: int, state: RankState) -> _StagedLayout:
        plan = self._plans.get(number)
        if plan is not None and plan.fits(state.tensors) and plan.layout.slices == state.slices:
            return plan
        if plan is not None:
            plan.close()
        self._plans[number] = _laid_out(number, state, self._accelerator)
        return self._plans[number]


def _encoded(name: str, tree: Any, live: dict[str, torch.Tensor]) -> Json:
    if not isinstance(tree, Encoded):
        return encode_tree(tree, path=name, tensors=live)
    live.update(tree.tensors)
    return tree.skeleton


def _whole(staged: Staged, copies: Sequence[Copy]) -> Staged:
    """The staged state, which later changes do not affect; it is whole once these copies are done."""
    staged._device_copies = copies
    staged._copied.set()
    staged._passed.set()
    return staged


def _laid_out(number: int, state: RankState, accelerator: Accelerator) -> _StagedLayout:
    live = state.tensors
    specs = {name: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in live.items()}
    layout = replace(layout_of(specs), slices=state.slices)
    whole_pages = -(-layout.size_bytes // PAGE_BYTES) * PAGE_BYTES
    staging_buffer = StagingBuffer(number=number, size_bytes=whole_pages)
    staging_buffer.memory[: len(layout.head)] = layout.head
    whole = torch.frombuffer(staging_buffer.memory, dtype=torch.uint8)
    views = []
    for name, tensor in live.items():
        _, start, size_bytes = layout.placed[name]
        views.append(whole[start : start + size_bytes].view(tensor.dtype).view(tensor.shape))
    return _StagedLayout(
        staging_buffer=staging_buffer,
        layout=layout,
        views=views,
        copier=Copier(views),
        names=list(live),
        shapes=[tensor.shape for tensor in live.values()],
        dtypes=[tensor.dtype for tensor in live.values()],
        device=next((tensor.device for tensor in live.values() if accelerator.has(tensor)), None),
        accelerator=accelerator,
    )


def _touch(plans: Sequence[_StagedLayout], pause: Callable[[float], object]) -> None:
    for plan in plans:
        plan.get_ready(pause=pause)


def _copy_now(pairs: Sequence[Pair], accelerator: Accelerator) -> None:
    """Copy these pairs; all is done on return. The host copies its own tensors while the devices copy theirs."""
    there = [pair for pair in pairs if accelerator.has(pair[1])]
    here = [pair for pair in pairs if not accelerator.has(pair[1])] if there else pairs
    accelerator.copy(there)
    copy_all([view for view, _ in here], [tensor for _, tensor in here])
    accelerator.drain([tensor for _, tensor in there])


def _copy_late(staged: Staged, pairs: Sequence[Pair]) -> None:
    is_whole = False
    try:
        copy_all([view for view, _ in pairs], [tensor for _, tensor in pairs])
        is_whole = True
    finally:
        staged.is_torn = staged.is_torn or not is_whole
        staged._copied.set()
