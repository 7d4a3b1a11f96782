"""Digests of a state on a device are those of its bytes, through little memory; a second look finds changes."""

from __future__ import annotations

import pytest
import torch

from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.format.snapshot import digest as digest_on_host
from segue.checkpoints.loading.live_digest import Looks, digest
from tests.checkpoints.saving.threaded_device import ThreadedDevice
from tests.checkpoints.test_staging import ODD


@pytest.fixture(params=range(3))
def device(request):
    made = ThreadedDevice(delay_seconds=0.001, seed=request.param)
    yield made
    made.close()


def test_digests_of_a_state_on_a_device_are_those_of_the_same_state_on_the_host(device):
    generator = torch.Generator().manual_seed(3)
    tensors = {f"a.{name}": tensor.detach().resolve_conj().resolve_neg().contiguous() for name, tensor in ODD.items()}
    tensors |= {f"a.{n}": torch.randn(n * 7, generator=generator).bfloat16() for n in range(200)}
    tensors |= {f"a.large{n}": torch.randn(5_000_001 + n, generator=generator) for n in range(3)}  # Of two parts.
    tensors["a.exact"] = torch.randn(4 * 2**20, generator=generator)
    live = Snapshot({"a": None}, tensors)
    expected = digest_on_host(live)
    for name in [*list(tensors)[::2], "a.large0", "a.large1"]:
        device.put(tensors[name])
    assert digest(live, accelerator=device) == expected == digest(live)
    assert device.locked == []
    assert 0 < device.lock_calls <= 4


def test_work_that_the_device_still_has_to_do_is_in_the_digest(device):
    tensor = device.put(torch.zeros(1000))
    device.launch(lambda: tensor.fill_(1.0))
    live = Snapshot({"a": None}, {"a.x": tensor})
    assert digest(live, accelerator=device) == digest_on_host(Snapshot({"a": None}, {"a.x": torch.ones(1000)}))


def test_known_digests_are_taken_as_given():
    live = take({"a": {"x": torch.ones(3), "y": torch.zeros(3)}})
    known = digest(live).tensors
    changed = take({"a": {"x": torch.ones(3), "y": torch.ones(3)}})
    assert digest(changed, known=known) == digest(live)
    assert digest(changed) != digest(live)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors["x"].add_(1),
        lambda tensors: tensors["x"].data.add_(1),
        lambda tensors: tensors["y"].mul_(2),
        lambda tensors: tensors.update(x=tensors["x"].clone()),
        lambda tensors: tensors.pop("y"),
    ],
)
def test_a_second_look_finds_a_change(change):
    big = torch.randn(100, 3)
    odd = {"one": torch.zeros(10)[::9], "column": big[:, 1], "corner": big[:1, 0], "spread": torch.zeros(1).expand(5)}
    tensors = {"x": torch.randn(1000), "y": torch.tensor(3.0), "z": torch.randn(30, 40).t(), **odd, "none": big[:0]}
    looks = Looks.at(tensors)
    assert looks.finds_same(dict(tensors))
    change(tensors)
    assert not looks.finds_same(tensors)
