"""What the tests of imports have in common; others have a `state` of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from segue.testing.recipes import tiny
from tests.support.forked_trainers import ForkServer
from tests.support.trained_run import Trained, train


@pytest.fixture(scope="session")
def trained(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run with every kind of checkpoint. Tests only read it."""
    return train(fork_server, tmp_path_factory.mktemp("trained") / "store")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    return tiny({}).model.state_dict()


@pytest.fixture
def weights(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    torch.save(state, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"
