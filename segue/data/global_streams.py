"""Keeps the global random streams of torch, NumPy and `random` unchanged over a block of code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def streams_kept() -> Iterator[None]:
    """A block after which the global random streams are restored, including the streams of CUDA devices in use."""
    numbers = np.random.get_state(legacy=False)
    python, cpu = random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def seed_all(seed: int) -> None:
    """Seed every global random stream that a training script is likely to use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
