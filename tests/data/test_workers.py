"""Workers of a data loader outlive a signal to all processes of a machine, from their first moment on."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils import signal_handling

from segue.data.workers import Loader

DATA = TensorDataset(torch.arange(8.0))


@pytest.fixture
def signalled_at_start(monkeypatch):
    """Each worker gets the signal when it has begun, and before its `worker_init_fn` is called."""
    handlers = signal_handling._set_worker_signal_handlers

    def at_start(*given):
        handlers(*given)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(signal_handling, "_set_worker_signal_handlers", at_start)


def total(loader):
    return sum(float(batch.sum()) for (batch,) in loader)


def test_a_worker_that_is_signalled_while_it_starts_gives_its_batches(signalled_at_start):
    assert total(Loader(DATA, batch_size=2, num_workers=2)) == 28


@pytest.mark.parametrize("workers", [0, 1])
def test_this_process_hears_the_signals_as_before_and_the_workers_own_function_is_called(workers, tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    loader = Loader(DATA, num_workers=workers, worker_init_fn=lambda number: (tmp_path / str(number)).touch())
    assert total(loader) == 28
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert len(list(tmp_path.iterdir())) == workers


def test_a_worker_blocks_no_signal_when_it_works():
    class Masks(TensorDataset):
        def __getitem__(self, index):
            return [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())] or [0]

    assert next(iter(Loader(Masks(torch.arange(1.0)), batch_size=None, num_workers=1))) == [0]
