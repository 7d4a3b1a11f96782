"""Workers of a data loader outlive a signal to all processes of a machine, and end when the trainer ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils import signal_handling

from segue.data.loader import Loader

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


HOLDS = """
import pathlib, sys, time
import torch
from torch.utils.data import Dataset
from segue.data.loader import Loader


class Stuck(Dataset):
    def __init__(self, asked):
        self.asked = asked

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index > 1:
            self.asked.touch()
            time.sleep(3600)
        return torch.ones(1)


if __name__ == "__main__":
    asked = pathlib.Path(sys.argv[2])
    batches = iter(Loader(Stuck(asked), num_workers=2, multiprocessing_context=sys.argv[1]))
    print(float(next(batches)))
    while not asked.exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.matrix)])
def test_a_script_ends_that_still_holds_its_batches_and_whose_worker_hangs(context, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HOLDS)
    command = [sys.executable, str(script), context, str(tmp_path / "asked")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert (ended.stdout, ended.stderr) == ("1.0\n", "")


def test_a_worker_blocks_no_signal_when_it_works():
    class Masks(TensorDataset):
        def __getitem__(self, index):
            return [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())] or [0]

    assert next(iter(Loader(Masks(torch.arange(1.0)), batch_size=None, num_workers=1))) == [0]
