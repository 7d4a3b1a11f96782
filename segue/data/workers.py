"""A DataLoader whose worker processes leave notices to the trainer, and end when it says so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

_NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Loader(DataLoader[Any]):
    """A DataLoader whose workers ignore SIGTERM, SIGUSR1 and Ctrl-C, unless the trainer itself ends them by SIGTERM.

    Platforms signal every process of a machine, and a terminal every process in its foreground. A worker killed by
    that would raise in the middle of a training step, and a preemption would look like a bug; the trainer acts on the
    notice and ends its workers itself. Where they are forked, this holds from their first moment on.
    """

    def __init__(self, dataset: Any, *, worker_init_fn: Callable[[int], None] | None = None, **fields: Any) -> None:
        """As DataLoader."""
        super().__init__(dataset, worker_init_fn=_LeaveNotices(worker_init_fn), **fields)

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


class _LeaveNotices:
    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        # Only a thread that waits for a signal learns who has sent it. It gets those that all threads block, and those
        # that have come until now.
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        threading.Thread(target=_obey, args=(_trainer(),), name="segue-signals", daemon=True).start()
        if self._inner is not None:
            self._inner(worker_id)


def _trainer() -> frozenset[int]:
    """The processes whose SIGTERM ends this worker: the trainer, also where a fork server started the worker for it."""
    trainer = multiprocessing.parent_process()
    asked = () if trainer is None or trainer.pid is None else (trainer.pid,)
    return frozenset((os.getppid(), *asked))


def _obey(trainer: frozenset[int]) -> None:
    """End this process when the trainer says so, whatever it does at that moment; drop all other notices."""
    while True:
        received = signal.sigwaitinfo(_NOTICES)
        if received.si_signo == signal.SIGTERM and received.si_pid in trainer:
            os._exit(0)  # As the handler of torch's own workers does.
