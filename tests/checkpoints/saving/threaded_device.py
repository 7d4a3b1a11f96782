"""Simulates a device by a thread.

The device copies late and in any order, like an accelerator, and therefore reveals races.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from segue.checkpoints.saving.accelerator import Copy, Room, no_pause
from segue.checkpoints.saving.gathering import Pair, gathered


@dataclass
class _Work:
    run: Callable[[], object]
    done: threading.Event = field(default_factory=threading.Event)
    is_kept: bool = False

    def hold_back_device(self) -> None:
        if self.is_kept:
            return
        # The calling thread changes this device's tensors next, so it has to wait here.
        self.done.wait()

    def wait(self) -> None:
        self.done.wait()


class ThreadedDevice:
    """An `Accelerator` whose memory is the memory of the tensors given to `put`, and whose streams are one thread.

    Each piece of work begins after `delay_seconds`. The copies of one call are made in a random order, which depends on
    `seed`.
    """

    def __init__(
        self, *, delay_seconds: float = 0.0, seed: int = 0, can_lock: bool = True, has_room: bool = False
    ) -> None:
        """If `has_room` is true, the device has memory for a copy of all its tensors."""
        self.has_room, self.delay_seconds, self.can_lock = has_room, delay_seconds, can_lock
        self.locked: list[int] = []
        """Sizes in bytes of the locked ranges of pages."""
        self.lock_calls = 0
        self.copies = 0
        """Number of copies that `copy` made."""
        self.threads: set[str] = set()
        """Names of the threads that locked pages."""
        self._random = random.Random(seed)
        self._held: dict[int, torch.UntypedStorage] = {}
        self._queue: queue.Queue[_Work | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="threaded-device", daemon=True)
        self._thread.start()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put the tensor on this device."""
        storage = tensor.untyped_storage()
        self._held[storage.data_ptr()] = storage
        return tensor

    def launch(self, work: Callable[[], object]) -> None:
        """Queue work on another stream than the stream of the caller."""
        self._queue.put(_Work(work))

    def close(self) -> None:
        """End the thread after all queued work."""
        self._queue.put(None)
        self._thread.join()

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._held

    def drain(self, tensors: Sequence[torch.Tensor]) -> None:
        if any(map(self.has, tensors)):
            last = _Work(lambda: None)
            self._queue.put(last)
            last.wait()

    def copy(self, pairs: Sequence[Pair]) -> None:
        for view, tensor in gathered(pairs):
            self.copies += 1
            work = _Work(lambda view=view, tensor=tensor: view.copy_(tensor.detach()))  # type: ignore[misc]
            self._queue.put(work)

    def copy_aside(self, pairs: Sequence[Pair]) -> list[Copy]:
        return self._copies(pairs, is_kept=False)

    def room_for(self, pairs: Sequence[Pair]) -> Room | None:
        return _Room(self, [view for view, _ in pairs]) if self.has_room else None

    def _copies(self, pairs: Sequence[Pair], *, is_kept: bool) -> list[Copy]:
        held = [(view, tensor.detach().clone() if is_kept else tensor.detach()) for view, tensor in pairs]
        works = [_Work(lambda view=view, tensor=tensor: view.copy_(tensor), is_kept=is_kept) for view, tensor in held]  # type: ignore[misc]
        for work in self._random.sample(works, len(works)):
            self._queue.put(work)
        return list(works)

    def lock_pages(
        self, memory: torch.Tensor, *, device: torch.device, pause: Callable[[float], object] = no_pause
    ) -> bool:
        self.lock_calls += 1
        self.threads.add(threading.current_thread().name)
        if self.can_lock:
            self.locked.append(memory.nbytes)
        return self.can_lock

    def unlock_pages(self, memory: torch.Tensor) -> None:
        self.locked.remove(memory.nbytes)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            time.sleep(self.delay_seconds)
            work.run()
            work.done.set()


@dataclass(frozen=True)
class _Room:
    device: ThreadedDevice
    views: Sequence[torch.Tensor]

    def copy(self, live: Sequence[torch.Tensor]) -> list[Copy] | None:
        if not self.device.has_room:
            return None
        return self.device._copies(list(zip(self.views, live, strict=True)), is_kept=True)
