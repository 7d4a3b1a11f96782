"""A state laid out in one staging buffer: the views that a save fills, and how it fills them."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from segue.checkpoints.format.layout import PAGE_BYTES, ShardLayout, TensorSpec, layout_of
from segue.checkpoints.saving.accelerator import Accelerator, Copy, Room, no_pause
from segue.checkpoints.saving.copy_cpu import Copier, copy_all
from segue.checkpoints.saving.gathering import Pair
from segue.checkpoints.saving.partition import RankState
from segue.checkpoints.saving.shared_memory import StagingBuffer
from segue.checkpoints.saving.tracing import span

_shape_of = operator.attrgetter("shape")
_dtype_of = operator.attrgetter("dtype")


@dataclass
class StagedLayout:
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
    under_way: Sequence[Copy] = ()
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
            copy_now(list(zip(self.views, live, strict=True)), self.accelerator)

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
        self.under_way = copies
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
        for copy in self.under_way:
            with suppress(RuntimeError):  # A device that has failed copies nothing more.
                copy.wait()
        self.room = None
        self._unlock()
        self.is_locked = None
        self.staging_buffer.close()


def laid_out(number: int, state: RankState, accelerator: Accelerator) -> StagedLayout:
    """The layout of this state in a new staging buffer with this number."""
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
    return StagedLayout(
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


def touch(plans: Sequence[StagedLayout], pause: Callable[[float], object]) -> None:
    """Get the memory of these layouts ready; runs in a thread of its own."""
    for plan in plans:
        plan.get_ready(pause=pause)


def copy_now(pairs: Sequence[Pair], accelerator: Accelerator) -> None:
    """Copy these pairs; all is done on return. The host copies its own tensors while the devices copy theirs."""
    there = [pair for pair in pairs if accelerator.has(pair[1])]
    here = [pair for pair in pairs if not accelerator.has(pair[1])] if there else pairs
    accelerator.copy(there)
    copy_all([view for view, _ in here], [tensor for _, tensor in here])
    accelerator.drain([tensor for _, tensor in there])
