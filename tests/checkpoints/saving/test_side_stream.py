"""A copy on a stream of its own: its tensors live until it is done, and freeing them afterwards asks no device."""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import pytest
import torch

from segue.checkpoints.saving import accelerator as module
from segue.checkpoints.saving.accelerator import TorchAccelerator

DEVICE = torch.device("meta")  # Of no type that is copied without streams, and there on each machine.


class Stream(nullcontext):
    def wait_stream(self, other):
        pass


class Event:
    failure = None

    def __init__(self, **_):
        pass

    def record(self, stream):
        pass

    def synchronize(self):
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def copy(monkeypatch):
    """A copy under way, and weak references to its sources, which nobody else holds."""
    monkeypatch.setattr(torch, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: Stream())
    monkeypatch.setattr(TorchAccelerator, "_copy", lambda self, pairs: None)
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(stream))
    sources = [torch.empty(3, device=DEVICE) for _ in range(2)]
    (made,) = TorchAccelerator().copy_aside([(torch.empty(3), source) for source in sources])
    assert isinstance(made, module._OnSideStream)
    assert not recorded
    return made, [weakref.ref(source) for source in sources]


def test_the_tensors_of_a_copy_live_until_it_is_done(copy):
    made, sources = copy
    assert all(source() is not None for source in sources)
    made.wait()
    assert all(source() is None for source in sources)


def test_a_device_that_fails_leaves_the_tensors_to_whoever_held_the_copy(copy):
    made, sources = copy
    made.event.failure = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError, match="device-side assert"):
        made.wait()
    assert all(source() is not None for source in sources)
