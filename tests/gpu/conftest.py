"""Tests that show something only on a CUDA device: `make gpu`. Elsewhere they are skipped, with the reason.

With SEGUE_GPU_TESTS_ON=cpu those that can run there do; that tests the tests.
"""

from __future__ import annotations

import os

import pytest
import torch

ON = os.environ.get("SEGUE_GPU_TESTS_ON", "cuda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/gpu/" not in str(item.path):
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available() and (ON != "cpu" or item.get_closest_marker("only_cuda")):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
