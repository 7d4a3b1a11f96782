"""Lays out a state in one staging buffer, and makes the views of the buffer that a save fills."""

from __future__ import annotations

import operator
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from segue.checkpoints.format.layout import PAGE_BYTES, ShardLayout, TensorSpec, layout_of
from segue.checkpoints.saving.accelerator import Accelerator, Copy, Room, no_pause
from segue.checkpoints.saving.gathering import Pair
from segue.checkpoints.saving.ipc import StagingBuffer
from segue.checkpoints.saving.partition import RankState
from segue.checkpoints.saving.tracing import span

_shape_of = operator.attrgetter("shape")
_dtype_of = operator.attrgetter("dtype")


@dataclass
class StagedLayout:
    """A layout in one staging buffer, with one view of the buffer for each tensor."""

    staging_buffer: StagingBuffer
    layout: ShardLayout
    views: list[torch.Tensor]
    copier: Copier
    names: list[str]
    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    device: torch.device | None
    """The device of the first tensor on an accelerator. The value is None if all tensors are in host memory."""
    accelerator: Accelerator
    is_locked: bool | None = None
    """Whether the memory is locked, so that the device copies directly into the memory.

    The value is None until locking is tried.
    """
    room: Room | None = None
    """Device memory for copies of the device tensors."""
    under_way: Sequence[Copy] = ()
    _unlock: Callable[[], object] = lambda: None

    def fits(self, live: Mapping[str, torch.Tensor]) -> bool:
        """Whether the state still has tensors of the same names, shapes and types."""
        tensors = live.values()
        return (
            self.names == list(live)
            and self.shapes == list(map(_shape_of, tensors))
            and self.dtypes == list(map(_dtype_of, tensors))
        )

    def fill(self, live: list[torch.Tensor]) -> None:
        """Copy all tensors. Return when all copies are done."""
        if self.device is None:
            self.copier.copy(live)
            return
        with span("wait for the device"):
            self.accelerator.drain(live)  # Work on other streams may change the state too.
        with span("copy", bytes=self.layout.size_bytes, is_locked=self.is_locked):
            copy_now(list(zip(self.views, live, strict=True)), self.accelerator)

    def copy_within(self, live: list[torch.Tensor]) -> Sequence[Copy] | None:
        """Copy all tensors. Device tensors are copied within their devices. The returned copies then go to the host.

        If a device has too little free memory, the method copies nothing and returns None.
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
            self.accelerator.drain(live)  # Work on other streams may change the state too.
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
        """Touch the memory. If a device copies into the memory, lock it. Training continues during the pauses."""
        memory = torch.frombuffer(self.staging_buffer.memory, dtype=torch.uint8)
        with span("touch memory", bytes=memory.nbytes):
            memory[len(self.layout.head) :].zero_()
        self.lock(pause=pause)

    def lock(self, *, pause: Callable[[float], object] = no_pause) -> None:
        """Lock the memory if a device copies into it. The call has no effect if locking was already tried."""
        if self.device is None or self.is_locked is not None:
            return
        memory = torch.frombuffer(self.staging_buffer.memory, dtype=torch.uint8)
        with span("lock memory", bytes=memory.nbytes) as facts:
            self.is_locked = facts["is_locked"] = self.accelerator.lock_pages(memory, device=self.device, pause=pause)
        if self.is_locked:
            # If memory is unmapped while it is locked, the lock stays: later copies to the same address would go to the
            # old pages. So the memory is unlocked together with the end of the buffer, even if this layout was not
            # closed.
            unlock = weakref.finalize(self.staging_buffer, self.accelerator.unlock_pages, memory)
            unlock.atexit = False
            self._unlock = unlock

    def close(self) -> None:
        """Wait until no device copies into the memory, then free the memory."""
        for copy in self.under_way:
            with suppress(RuntimeError):  # A failed device copies nothing more.
                copy.wait()
        self.room = None
        self._unlock()
        self.is_locked = None
        self.staging_buffer.close()


def laid_out(number: int, state: RankState, accelerator: Accelerator) -> StagedLayout:
    """Create a staging buffer with this number, and lay out the state in the buffer."""
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
    """Touch and lock the memory of these layouts. The function runs in a separate thread."""
    for plan in plans:
        plan.get_ready(pause=pause)


def copy_now(pairs: Sequence[Pair], accelerator: Accelerator) -> None:
    """Copy these pairs and wait for all copies. The host copies CPU tensors while devices copy their own tensors."""
    there = [pair for pair in pairs if accelerator.has(pair[1])]
    here = [pair for pair in pairs if not accelerator.has(pair[1])] if there else pairs
    accelerator.copy(there)
    copy_all([view for view, _ in here], [tensor for _, tensor in here])
    accelerator.drain([tensor for _, tensor in there])


_SHARED_BYTES = 32_768 * 4
"""Smallest size in bytes at which torch itself uses several threads for a copy (at::internal::GRAIN_SIZE)."""
_WORTH_A_THREAD_BYTES = 4 * 2**20


class Copier:
    """Copies tensors into the same views, many times.

    Torch copies small tensors one after the other on one thread. This class divides the small tensors among as many
    threads as torch uses for one large tensor. The class divides them only once, because reading the sizes of 10,000
    tensors takes long.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        self._views = list(views)
        sizes = [view.nbytes for view in views]
        small = [number for number, size_bytes in enumerate(sizes) if size_bytes < _SHARED_BYTES]
        shares = _even_runs(small, sizes, count=torch.get_num_threads())
        large = [number for number, size_bytes in enumerate(sizes) if size_bytes >= _SHARED_BYTES]
        self._shares = [(share, [views[number] for number in share]) for share in shares]
        self._large = (large, [views[number] for number in large])

    def copy(self, live: Sequence[torch.Tensor]) -> None:
        """Copy each tensor into the view with the same index. Return when all copies are done."""
        if len(self._shares) < 2:
            copy_all(self._views, live)
            return

        def copy(share: tuple[list[int], list[torch.Tensor]]) -> None:
            numbers, views = share
            copy_all(views, [live[number] for number in numbers])

        with ThreadPoolExecutor(len(self._shares) - 1, thread_name_prefix="segue-copy") as others:
            copying = [others.submit(copy, share) for share in self._shares[1:]]
            copy(self._shares[0])
            for copied in copying:
                copied.result()
        copy(self._large)  # Torch itself uses several threads for each of these.


@torch.no_grad()
def copy_all(views: Sequence[torch.Tensor], live: Sequence[torch.Tensor]) -> None:
    """Copy each tensor into the view with the same index, on this thread and the threads of torch."""
    if live:
        torch._foreach_copy_(list(views), list(live))


def _even_runs(numbers: Sequence[int], sizes: Sequence[int], *, count: int) -> list[list[int]]:
    """Divide the indexes of the tensors into at most `count` groups of adjacent tensors.

    All groups have about the same size in bytes. Use fewer groups if the tensors are small.
    """
    ends = list(accumulate(sizes[number] for number in numbers))
    count = min(count, ends[-1] // _WORTH_A_THREAD_BYTES if ends else 0)
    cuts = [0, *(bisect_left(ends, ends[-1] * number // count) + 1 for number in range(1, count)), len(numbers)]
    return [list(numbers[start:stop]) for start, stop in pairwise(cuts) if start < stop]
