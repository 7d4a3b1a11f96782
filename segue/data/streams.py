"""Reads, sets, keeps and seeds the state of random number generators of torch, NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

STREAMS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""The types of random number generators that segue can read and restore."""


def state_of_stream(stream: Any) -> Any:
    """The state of a random number generator of torch, NumPy or Python, as data."""
    if isinstance(stream, torch.Generator):
        return stream.get_state()
    if isinstance(stream, np.random.Generator):
        return stream.bit_generator.state
    if isinstance(stream, np.random.RandomState):
        return stream.get_state(legacy=False)
    version, words, gauss = stream.getstate()
    return {"version": version, "words": np.array(words, np.int64), "gauss": gauss}


def set_state_of_stream(stream: Any, state: Any) -> None:
    """Set the state of a generator to a value that `state_of_stream` returned for the same type of generator."""
    if isinstance(stream, (torch.Generator, np.random.RandomState)):
        stream.set_state(state)
    elif isinstance(stream, np.random.Generator):
        stream.bit_generator.state = state
    else:
        stream.setstate((state["version"], tuple(int(word) for word in state["words"]), state["gauss"]))


@dataclass(frozen=True)
class GlobalStream:
    """A random stream of the whole process, as a component that segue captures and restores."""

    read: Callable[[], Any]
    write: Callable[[Any], None]

    def capture(self) -> Any:
        return self.read()

    def restore(self, tree: Any) -> None:
        self.write(tree)


GLOBAL_STREAMS = {
    "torch": GlobalStream(torch.get_rng_state, torch.set_rng_state),
    "python": GlobalStream(partial(state_of_stream, random), partial(set_state_of_stream, random)),
    "numpy": GlobalStream(partial(np.random.get_state, legacy=False), np.random.set_state),
}
"""The global random streams on the host, by name."""


@contextmanager
def streams_kept() -> Iterator[None]:
    """Restore the global random streams at the end of the block, including the streams of CUDA devices in use."""
    before = {name: stream.capture() for name, stream in GLOBAL_STREAMS.items()}
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for name, state in before.items():
            GLOBAL_STREAMS[name].restore(state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def seed_all(seed: int) -> None:
    """Seed every global random stream that a training script is likely to use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
