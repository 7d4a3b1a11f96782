"""Copies state from accelerators into locked host memory, on side streams that run in parallel with the computation.

Staging uses devices only through an `Accelerator`, so tests can use a thread that acts as a device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from segue.checkpoints.saving.gathering import DeviceRoom, Pair, gathered, is_short, room_on
from segue.clock import SystemClock

log = logging.getLogger(__name__)

_PIECE_BYTES = 2**27
"""Size in bytes of the pieces in which pages are locked.

Each call that locks pages holds locks of the driver, and a step may launch kernels at the same time. A copy must not
cross the border between two pieces. Each copy is therefore cut at the borders.
"""
_ALREADY_LOCKED = 712
"""The error code of CUDA for memory that is partly locked, or that was unmapped while it was locked."""
_WITHOUT_STREAMS = ("mps",)


def no_pause(seconds: float) -> None:
    """Return at once, without a pause."""


class Copy(Protocol):
    """A copy that is in progress on a device."""

    def hold_back_device(self) -> None:
        """Make later work of the device wait for the copy. The host does not wait."""
        ...

    def wait(self) -> None:
        """Block until the copy is done."""
        ...


class Room(Protocol):
    """Device memory for a copy of a state."""

    def copy(self, live: Sequence[torch.Tensor]) -> list[Copy] | None:
        """Copy these tensors first within their devices, and then from the copies to the host.

        The caller may change the tensors after the method has returned. If too little device memory is free, the method
        copies nothing and returns None.
        """
        ...


class Accelerator(Protocol):
    """The operations of an accelerator that staging needs."""

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the memory of one of the accelerator's devices."""
        ...

    def drain(self, tensors: Sequence[torch.Tensor]) -> None:
        """Block until all work that is queued on the devices of these tensors is done, on all streams."""
        ...

    def copy(self, pairs: Sequence[Pair]) -> None:
        """Queue copies of these device tensors behind the work that is already queued."""
        ...

    def copy_aside(self, pairs: Sequence[Pair]) -> list[Copy]:
        """Start copies that run after the work that is queued on the current streams.

        The copies run in parallel with later work.
        """
        ...

    def room_for(self, pairs: Sequence[Pair]) -> Room | None:
        """Allocate device memory for a copy of all these tensors. Return None if too little device memory is free.

        The allocated memory is freed when the returned object is freed.
        """
        ...

    def lock_pages(
        self, memory: torch.Tensor, *, device: torch.device, pause: Callable[[float], object] = no_pause
    ) -> bool:
        """Lock host memory, so that the device can copy into this memory directly.

        Return whether the memory could be locked. The method may run in another thread than the training thread. The
        training thread is blocked while a piece of memory is being locked. After each piece, the method calls `pause`
        with the number of seconds that the piece took.
        """
        ...

    def unlock_pages(self, memory: torch.Tensor) -> None:
        """Unlock the memory that `lock_pages` locked.

        Call this method before the memory is freed, so that no device writes into the freed pages. The method never
        raises an error, so a process with a failed device can still end.
        """
        ...


class TorchAccelerator:
    """An `Accelerator` that uses `torch.accelerator`, for CUDA, XPU and other devices.

    The class locks pages only for CUDA.
    """

    def __init__(self) -> None:
        # One stream per device, because memory that is allocated on a stream stays reserved for this stream.
        self._streams: dict[torch.device, torch.Stream] = {}
        self._streams_lock = threading.Lock()
        self._locked: dict[int, int] = {}
        """Start address and size in bytes of each locked range of memory."""

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type not in ("cpu", "meta")

    def drain(self, tensors: Sequence[torch.Tensor]) -> None:
        for device in {tensor.device for tensor in tensors if self.has(tensor)}:
            torch.accelerator.synchronize(device)

    def copy(self, pairs: Sequence[Pair]) -> None:
        self._copy(pairs)

    def copy_aside(self, pairs: Sequence[Pair]) -> list[Copy]:
        copies: list[Copy] = []
        for device in dict.fromkeys(tensor.device for _, tensor in pairs):
            of_device = [pair for pair in pairs if pair[1].device == device]
            if device.type in _WITHOUT_STREAMS:
                self._copy(of_device)
                torch.accelerator.synchronize(device)
            else:
                copies.append(self._copy_on_side_stream(of_device, device))
        return copies

    def room_for(self, pairs: Sequence[Pair]) -> Room | None:
        views, rooms = [view for view, _ in pairs], []
        for device in dict.fromkeys(tensor.device for _, tensor in pairs):
            numbers = [number for number, (_, tensor) in enumerate(pairs) if tensor.device == device]
            room = room_on(device, views, numbers)
            if room is None:
                return None
            rooms.append(room)
        return _Rooms(rooms, self.copy_aside)

    def lock_pages(
        self, memory: torch.Tensor, *, device: torch.device, pause: Callable[[float], object] = no_pause
    ) -> bool:
        if device.type != "cuda":
            return False
        # The current device is set per thread, and a new thread begins with the first device.
        torch.cuda.set_device(device)
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        locked: list[int] = []
        for address, size_bytes in _pieces(memory.data_ptr(), memory.nbytes):
            began = SystemClock().monotonic()
            error = int(cudart.cudaHostRegister(address, size_bytes, 0))
            if error == _ALREADY_LOCKED and int(cudart.cudaHostUnregister(address)) == 0:
                # A previous owner unmapped this memory without unlocking it. A copy would go to the old pages.
                error = int(cudart.cudaHostRegister(address, size_bytes, 0))
                _clear_error(device)
            if error:
                for each in locked:
                    cudart.cudaHostUnregister(each)
                _clear_error(device)
                log.warning(
                    "the system refused to lock %d bytes of host memory (CUDA error %d); saves continue, but copy "
                    "several times slower. Fix: give the machine or container more memory",
                    memory.nbytes,
                    error,
                )
                return False
            locked.append(address)
            pause(SystemClock().monotonic() - began)
        self._locked[memory.data_ptr()] = memory.nbytes
        return True

    def unlock_pages(self, memory: torch.Tensor) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._locked.pop(memory.data_ptr(), None)
        errors = {int(cudart.cudaHostUnregister(address)) for address, _ in _pieces(memory.data_ptr(), memory.nbytes)}
        if any(errors):
            _clear_error(torch.device("cuda"))
            log.warning("host memory could not be unlocked (CUDA error %d)", max(errors))

    def _copy_on_side_stream(self, pairs: Sequence[Pair], device: torch.device) -> Copy:
        with self._streams_lock:
            if device not in self._streams:
                self._streams[device] = torch.Stream(device=device)
            side = self._streams[device]
        side.wait_stream(torch.accelerator.current_stream(device))
        with side:
            self._copy(pairs)
            copied = torch.Event(device=device, blocking=True)
            copied.record(side)
        return _OnSideStream(copied, device, [tensor for _, tensor in pairs])

    @torch.no_grad()
    def _copy(self, pairs: Sequence[Pair]) -> None:
        for view, tensor in gathered(pairs):
            for part, source in self._cut(view, tensor):
                part.copy_(source, non_blocking=True)

    def _cut(self, view: torch.Tensor, tensor: torch.Tensor) -> Iterator[Pair]:
        """Return the same copy in parts, so that no part crosses the border between two locked pieces."""
        first = view.data_ptr()
        start = next((start for start, size in list(self._locked.items()) if start <= first < start + size), None)
        if start is None or (first - start) // _PIECE_BYTES == (first - start + view.nbytes - 1) // _PIECE_BYTES:
            yield view, tensor
            return
        # Pieces begin at pages and each destination is aligned to its element size, so no element is cut in two.
        target, source = view.view(-1), tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        size = view.element_size()
        to_border = (_PIECE_BYTES - (first - start) % _PIECE_BYTES) // size
        sizes = [to_border, *[_PIECE_BYTES // size] * ((len(target) - to_border) // (_PIECE_BYTES // size))]
        sizes += [len(target) - sum(sizes)]
        yield from zip(torch.split(target, sizes), torch.split(source, sizes), strict=True)


@dataclass(frozen=True)
class _OnSideStream:
    """A copy that runs on a separate stream.

    Until the copy is done, this object keeps references to the copied tensors, so that their memory is not reused.
    `Tensor.record_stream` would also keep the memory, but freeing the tensor would then record an event. If the device
    has failed, this event ends the process.
    """

    event: torch.Event
    device: torch.device
    held: list[torch.Tensor]

    def hold_back_device(self) -> None:
        torch.accelerator.current_stream(self.device).wait_event(self.event)

    def wait(self) -> None:
        self.event.synchronize()
        self.held.clear()


@dataclass(frozen=True)
class _Rooms:
    """Device memory on one or more devices, for copies of tensors."""

    rooms: Sequence[DeviceRoom]
    copy_aside: Callable[[Sequence[Pair]], list[Copy]]

    def copy(self, live: Sequence[torch.Tensor]) -> list[Copy] | None:
        if any(is_short(room.device) for room in self.rooms):
            return None
        copies: list[Copy] = []
        filled = []
        for room in self.rooms:
            room.fill(live)
            filled.append(torch.Event(device=room.device, blocking=True))
            filled[-1].record(torch.accelerator.current_stream(room.device))
            copies += self.copy_aside(room.moves)
        for event in filled:
            event.synchronize()  # Another stream may change the tensors without waiting for this stream.
        return [_FromRoom(copy) for copy in copies]


@dataclass(frozen=True)
class _FromRoom:
    """A copy from a `Room`.

    The device does not have to wait for this copy, because no other work changes the memory of the `Room`.
    """

    copy: Copy

    def hold_back_device(self) -> None:
        return

    def wait(self) -> None:
        self.copy.wait()


def _pieces(address: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the address and the size in bytes of each piece in which memory is locked."""
    for start in range(0, size_bytes, _PIECE_BYTES):
        yield address + start, min(_PIECE_BYTES, size_bytes - start)


def _clear_error(device: torch.device) -> None:
    """Clear the error state after a refused call, so that the next kernel does not raise the error of this call."""
    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        log.debug("cleared the device error of a refused call error=%s", error)
