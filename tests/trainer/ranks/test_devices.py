"""More ranks than there are accelerators."""

from __future__ import annotations

import pytest
import torch

from segue.errors import SpecError
from segue.trainer.process.environment import prepare_device


def test_more_ranks_than_accelerators_are_refused_before_they_wait_for_each_other(make_spec, monkeypatch):
    count = torch.cuda.device_count() + 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))
    with pytest.raises(SpecError, match=f"ranks: {count} ranks need {count} accelerators"):
        prepare_device(make_spec(device="cuda"), local_rank=0)
