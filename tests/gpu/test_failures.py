"""What a device that is full, that a kernel has broken, or that is absent means for a run."""

from __future__ import annotations

import signal

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history
from tests.gpu.test_recipes import on_device  # noqa: F401 - a fixture
from tests.support.observers import stop_when_proven


def test_a_device_without_memory_is_named_and_the_last_commit_stands(fork_server, on_device, open_log):  # noqa: F811
    spec = on_device("hungry", checkpoints={"every_steps": 5})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.OUT_OF_MEMORY, report.failure and report.failure.message
    assert report.checkpoint.step >= 5


@pytest.mark.only_cuda
def test_an_assert_of_a_kernel_is_reported_with_an_overlapped_save_in_flight(fork_server, on_device, open_log):  # noqa: F811
    spec = on_device("asserting", checkpoints={"every_steps": 7, "staging": "overlapped"})
    report = fork_server.run_attempt(open_log(spec), spec, limit_seconds=60)
    assert report.stop_reason is StopReason.FAILED
    assert "device-side assert" in report.failure.message


@pytest.mark.only_cuda
def test_without_its_device_an_attempt_is_lost_and_trains_nowhere_else(fork_server, on_device, open_log):  # noqa: F811
    spec = on_device("mlp")
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
    before = read_history(runlog.reload()).committed_step
    report = fork_server.run_attempt(runlog, spec, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert (report.stop_reason, report.attempt_id) == (StopReason.LOST, None)
    assert read_history(runlog.reload()).committed_step == before
