"""A DataLoader whose worker processes ignore notices, so that the trainer acts on the notices.

The workers end with the trainer.
"""

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
"""Priority of a finalizer that multiprocessing calls before it ends its child processes and waits for them."""

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_ended_at_exit: set[int] = set()
"""Ids of the processes that kill their workers at exit. A child process inherits this set, but not the finalizers."""


class Loader(DataLoader[Any]):
    """A DataLoader whose workers ignore SIGTERM, SIGUSR1 and Ctrl-C.

    Forked workers ignore these signals from the beginning. A platform signals every process of a machine, and a
    terminal signals every process in its foreground. If such a signal killed a worker, the training step would raise an
    error, and a preemption would look like a bug. Instead, the trainer acts on the notice and ends its workers itself,
    even workers of an iterator that a script still holds at its end.
    """

    def __init__(self, dataset: Any, *, worker_init_fn: Callable[[int], None] | None = None, **fields: Any) -> None:
        """The arguments are the same as for DataLoader."""
        super().__init__(dataset, worker_init_fn=_IgnoreNotices(worker_init_fn), **fields)

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        # The signals are blocked during the start: workers inherit the mask, and a signal would kill a worker before
        # the worker ignores it. This process still gets the signal in another thread, or after the workers' start.
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)  # Pending signals are dropped.
        if self._inner is not None:
            self._inner(worker_id)


def _end_at_exit(workers: Any) -> None:
    """Kill these processes when this process exits.

    Otherwise multiprocessing would send SIGTERM to them and wait for ever.
    """
    _workers.update(workers)
    if os.getpid() not in _ended_at_exit:
        _ended_at_exit.add(os.getpid())
        Finalize(None, _kill_workers, exitpriority=_BEFORE_THE_JOIN)


def _kill_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a worker that was killed.
    for worker in list(_workers):
        if worker.is_alive():
            worker.kill()
