"""A DataLoader whose worker processes leave notices to the trainer, and do not outlive it."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from torch.utils.data import DataLoader

_NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_BEFORE_THE_JOIN = 100
"""multiprocessing calls finalizers with a priority of 0 or more before it ends the children and waits for them."""

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_ended_at_exit: set[int] = set()
"""The processes that end their workers at their exit: a child process inherits this set, but not the finalizers."""


class Loader(DataLoader[Any]):
    """A DataLoader whose workers ignore SIGTERM, SIGUSR1 and Ctrl-C; if they are forked, from their first moment on.

    Platforms signal every process of a machine, and a terminal every process in its foreground. A worker killed by such
    a signal would raise in the middle of a training step, and a preemption would look like a bug; the trainer acts on
    the notice and ends its workers itself, even those of an iterator that a script still holds when it ends.
    """

    def __init__(self, dataset: Any, *, worker_init_fn: Callable[[int], None] | None = None, **fields: Any) -> None:
        """As DataLoader."""
        super().__init__(dataset, worker_init_fn=_IgnoreNotices(worker_init_fn), **fields)

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        # Workers inherit the mask, and would die of a signal before they ignore it. This process still receives the
        # signal: in another thread, or after the workers have started.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        try:
            batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _end_at_exit(getattr(batches, "_workers", ()))
        return batches


class _IgnoreNotices:
    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        for number in _NOTICES:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)  # Signals that have come are dropped.
        if self._inner is not None:
            self._inner(worker_id)


def _end_at_exit(workers: Any) -> None:
    """Kill these processes when this one exits: multiprocessing would send SIGTERM, and wait for ever."""
    _workers.update(workers)
    if os.getpid() not in _ended_at_exit:
        _ended_at_exit.add(os.getpid())
        Finalize(None, _kill_workers, exitpriority=_BEFORE_THE_JOIN)


def _kill_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a worker that was killed.
    for worker in list(_workers):
        if worker.is_alive():
            worker.kill()
