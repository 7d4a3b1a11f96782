"""A DataLoader whose worker processes leave notices to the trainer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

_NOTICES = (signal.SIGTERM, signal.SIGUSR1)


class Loader(DataLoader[Any]):
    """A DataLoader whose workers ignore SIGTERM and SIGUSR1; where they are forked, from their first moment on.

    Platforms signal every process of a machine. A worker killed by that would raise in the middle of a training step,
    and a preemption would look like a bug; the trainer acts on the notice and ends its workers itself.
    """

    def __init__(self, dataset: Any, *, worker_init_fn: Callable[[int], None] | None = None, **fields: Any) -> None:
        """As DataLoader."""
        super().__init__(dataset, worker_init_fn=_IgnoreNotices(worker_init_fn), **fields)

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        # Workers inherit the mask, and would die of a signal before they ignore it. This process still hears it: in
        # another thread, or when the workers have started.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _IgnoreNotices:
    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        for number in _NOTICES:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)  # Those that have come are dropped.
        if self._inner is not None:
            self._inner(worker_id)
