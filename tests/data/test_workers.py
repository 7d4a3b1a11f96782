"""Workers of a data loader outlive a signal to all processes of a machine, and end when the trainer ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torch.utils.data._utils import signal_handling

from segue.data.workers import Loader

DATA = TensorDataset(torch.arange(8.0))
NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture
def signalled_at_start(monkeypatch):
    """Each worker gets the signals when it has begun, and before its `worker_init_fn` is called."""
    handlers = signal_handling._set_worker_signal_handlers

    def at_start(*given):
        handlers(*given)
        for number in NOTICES:
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


@pytest.mark.parametrize("number", NOTICES)
def test_a_worker_that_is_signalled_by_another_process_while_it_works_gives_its_batches(number):
    class Signalled(TensorDataset):
        def __getitem__(self, index):
            subprocess.run(["kill", f"-{int(number)}", str(os.getpid())], check=True)
            return super().__getitem__(index)

    assert total(Loader(Signalled(torch.arange(8.0)), batch_size=2, num_workers=2)) == 28


class Stuck(Dataset):
    """Never gives a sample; says when it was asked for one."""

    def __init__(self, asked):
        self.asked = asked

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.asked.touch()
        while True:
            time.sleep(1)


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.matrix)])
def test_a_worker_that_hangs_ends_when_the_trainer_ends_it(context, tmp_path):
    batches = iter(Loader(Stuck(tmp_path / "asked"), num_workers=1, multiprocessing_context=context))
    (worker,) = batches._workers
    while not (tmp_path / "asked").exists():
        time.sleep(0.01)
    worker.terminate()
    worker.join(120)
    assert worker.exitcode == 0


def test_a_script_that_still_holds_its_batches_ends():
    script = (
        "import torch\nfrom segue.data.workers import Loader\n"
        "batches = iter(Loader([torch.ones(1)] * 64, num_workers=2))\nprint(float(next(batches)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert ended.stdout == "1.0\n"
