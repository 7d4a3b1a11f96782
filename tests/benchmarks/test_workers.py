"""Worker processes of benchmarks."""

from __future__ import annotations

import os

import pytest

from benchmarks.common.workers import workers

NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize("before", [None, "7"])
def test_each_worker_has_one_thread_for_linear_algebra_and_this_process_keeps_its_own(before, monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
    with workers(1) as pool:
        assert [pool.submit(os.getenv, name).result() for name in NAMES] == ["1"] * 3
    assert [os.environ.get(name) for name in NAMES] == [before] * 3
