"""A device that is asked for without a number gets one: some functions of torch take no other."""

from __future__ import annotations

import pytest
import torch

from segue.trainer.process.environment import prepare_device
from segue.trainer.replays.replay_process import cap_device_memory


@pytest.fixture
def one_gpu(monkeypatch):
    """Torch as it is where there is a device; returns what was set for which one."""
    done: dict[str, object] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.update(device=device))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2**30, 4 * 2**30))
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda fraction, index: done.update({"index": index}), raising=False
    )
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    return done


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_process_beside_the_trainer_limits_its_memory_on_that_device(one_gpu, make_spec, name):
    device = prepare_device(make_spec(device=name))
    assert (str(device), one_gpu["device"]) == ("cuda:0", device)
    cap_device_memory(device)
    assert one_gpu["index"] == 0
