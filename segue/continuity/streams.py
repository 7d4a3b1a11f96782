"""Reads and sets the state of random number generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


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
    """Set the state of a generator to a result of `state_of_stream` for the same kind of generator."""
    if isinstance(stream, (torch.Generator, np.random.RandomState)):
        stream.set_state(state)
    elif isinstance(stream, np.random.Generator):
        stream.bit_generator.state = state
    else:
        stream.setstate((state["version"], tuple(int(word) for word in state["words"]), state["gauss"]))
