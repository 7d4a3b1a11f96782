"""Copying from accelerators into host memory: on side streams that run beside the computation, into locked pages.

Staging asks an `Accelerator` and nothing else about devices, so `segue.testing.threaded_device` can stand in for one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from segue.checkpoints.saving.gathering import Pair, gathered

log = logging.getLogger(__name__)

_PIECE_BYTES = 2**30
"""Pages are locked in pieces: the call holds locks of the driver, and a step launches kernels meanwhile."""
_WITHOUT_STREAMS = ("mps",)


class Copy(Protocol):
    """A copy that is under way on a device."""

    def hold_back_device(self) -> None:
        """Let the later work of the device wait for it; the host goes on."""
        ...

    def wait(self) -> None:
        """Block until it is done."""
        ...


class Accelerator(Protocol):
    """The devices beside the processor, as staging uses them."""

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the memory of one of them."""
        ...

    def drain(self, tensors: Sequence[torch.Tensor]) -> None:
        """Block until all work that was queued on the devices of these tensors is done, on every stream."""
        ...

    def copy(self, pairs: Sequence[Pair]) -> None:
        """Queue copies of these tensors of theirs, after what is queued already."""
        ...

    def copy_aside(self, pairs: Sequence[Pair]) -> list[Copy]:
        """Start copying these tensors, after what is queued on the current streams and beside what follows."""
        ...

    def lock_pages(self, memory: torch.Tensor, *, device: torch.device) -> bool:
        """Lock host memory, so that the device copies into it directly; whether that was possible.

        May be called in another thread than the one that trains.
        """
        ...

    def unlock_pages(self, memory: torch.Tensor) -> None:
        """Undo `lock_pages`. Never raises: a device that has failed cannot keep its owner from ending."""
        ...


class TorchAccelerator:
    """What `torch.accelerator` offers for CUDA, XPU and others; pages are locked for CUDA alone."""

    def __init__(self) -> None:
        # One for each device: memory that is allocated on a stream stays reserved for it.
        self._streams: dict[torch.device, torch.Stream] = {}
        self._streams_lock = threading.Lock()

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type not in ("cpu", "meta")

    def drain(self, tensors: Sequence[torch.Tensor]) -> None:
        for device in {tensor.device for tensor in tensors if self.has(tensor)}:
            torch.accelerator.synchronize(device)

    def copy(self, pairs: Sequence[Pair]) -> None:
        _copy(pairs)

    def copy_aside(self, pairs: Sequence[Pair]) -> list[Copy]:
        copies: list[Copy] = []
        for device in dict.fromkeys(tensor.device for _, tensor in pairs):
            of_device = [pair for pair in pairs if pair[1].device == device]
            if device.type in _WITHOUT_STREAMS:
                _copy(of_device)
                torch.accelerator.synchronize(device)
            else:
                with self._streams_lock:
                    if device not in self._streams:
                        self._streams[device] = torch.Stream(device=device)
                    side = self._streams[device]
                copies.append(_copy_on_side_stream(of_device, device, side))
        return copies

    def lock_pages(self, memory: torch.Tensor, *, device: torch.device) -> bool:
        if device.type != "cuda":
            return False
        # The current device is that of a thread, and a new thread has the first one.
        torch.cuda.set_device(device)
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        locked: list[int] = []
        for start in _pieces(memory):
            piece = memory[start : start + _PIECE_BYTES]
            error = int(cudart.cudaHostRegister(piece.data_ptr(), piece.nbytes, 0))
            if error:
                for address in locked:
                    cudart.cudaHostUnregister(address)
                _clear_error(device)
                log.warning(
                    "the system refused to lock %d bytes of host memory (CUDA error %d); saves go on, and copy several "
                    "times slower. Fix: give the machine or container more memory",
                    memory.nbytes,
                    error,
                )
                return False
            locked.append(piece.data_ptr())
        return True

    def unlock_pages(self, memory: torch.Tensor) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for start in _pieces(memory):
            error = int(cudart.cudaHostUnregister(memory.data_ptr() + start))
            if error:
                log.warning("host memory could not be unlocked (CUDA error %d)", error)
                return


@dataclass(frozen=True)
class _OnSideStream:
    event: torch.Event
    device: torch.device

    def hold_back_device(self) -> None:
        torch.accelerator.current_stream(self.device).wait_event(self.event)

    def wait(self) -> None:
        self.event.synchronize()


def _copy_on_side_stream(pairs: Sequence[Pair], device: torch.device, side: torch.Stream) -> Copy:
    side.wait_stream(torch.accelerator.current_stream(device))
    with side:
        _copy(pairs)
        for _, tensor in pairs:
            tensor.record_stream(side)  # Its memory may be given to another tensor only after the copy.
        copied = torch.Event(device=device, blocking=True)
        copied.record(side)
    return _OnSideStream(copied, device)


@torch.no_grad()
def _copy(pairs: Sequence[Pair]) -> None:
    for view, tensor in gathered(pairs):
        view.copy_(tensor, non_blocking=True)


def _pieces(memory: torch.Tensor) -> range:
    return range(0, memory.nbytes, _PIECE_BYTES)


def _clear_error(device: torch.device) -> None:
    """A refused call leaves its error behind, which the next kernel would raise as its own."""
    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        log.debug("the error of the refused call is cleared error=%s", error)
