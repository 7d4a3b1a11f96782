"""What an exception of the recipe is taken for, and what a run does after it."""

from __future__ import annotations

import errno

import pytest
import torch

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import decide_next
from segue.errors import RankFailedError, RecipeError
from segue.launch.memory import MemoryKills
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.trainer.health.failures import is_transient, stop_reason

STUCK = "tests.recipes.stuck:build"
NO_KILLS = MemoryKills(group=0, machine=0)


class ReadTimeoutError(Exception):
    """As network libraries name theirs."""


def raised_from(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError("Caught OSError in DataLoader worker process 0."), True),
        (ConnectionResetError("reset"), True),
        (TimeoutError("slow"), True),
        (ReadTimeoutError("slow"), True),
        (raised_from(RuntimeError("cannot load"), OSError(errno.ESTALE, "Stale file handle")), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "), True),
        (RuntimeError("DataLoader worker (pid(s) 7, 9) exited unexpectedly"), True),
        (RankFailedError(rank=1, type_name="OSError", message="", traceback="", is_transient=True), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
        (ValueError("shapes differ"), False),
        (KeyError("label"), False),
        (raised_from(RuntimeError("cannot load"), FileNotFoundError(errno.ENOENT, "No such file")), False),
        (RecipeError(recipe="a:b", why="is wrong.", fix="correct it."), False),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_only_errors_of_disk_network_and_workers_are_transient(error, transient):
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("how", "type_name"),
    [
        pytest.param("memory", "MemoryError", marks=pytest.mark.matrix),
        ("accelerator", "OutOfMemoryError"),
        ("allocate", "RuntimeError"),
        ("fork", "OSError"),
    ],
)
def test_no_memory_is_told_apart_from_other_exceptions(fork_server, make_spec, open_log, how, type_name):
    spec = make_spec(recipe=STUCK, config={"how": how, "at_step": 15})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.OUT_OF_MEMORY
    assert report.failure.type == type_name
    assert report.peak_memory_bytes > 10 * 2**20


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("CUDA error: out of memory", StopReason.OUT_OF_MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", StopReason.OUT_OF_MEMORY),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", StopReason.OUT_OF_MEMORY),
        ("worker 2: [Errno 12] Cannot allocate memory", StopReason.OUT_OF_MEMORY),
        ("CUDA error: device-side assert triggered", StopReason.FAILED),
    ],
)
def test_messages_without_a_type_of_their_own_say_that_memory_is_used_up(message, reason):
    error = RuntimeError(message)
    on_a_rank = RankFailedError(rank=1, type_name="RuntimeError", message=message, traceback="", is_transient=False)
    assert [stop_reason(each, kills_before=NO_KILLS) for each in (error, on_a_rank)] == [reason, reason]


def device_error(message, code):
    error = torch.AcceleratorError(message)
    if code is not None:
        error.error_code = code
    return error


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("CUDA error: uncorrectable ECC error encountered", 214, StopReason.LOST),
        ("CUDA error: uncorrectable ECC error encountered", None, StopReason.LOST),
        ("CUDA error: unknown error", 999, StopReason.LOST),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", None, StopReason.LOST),
        ("CUDA error: device-side assert triggered", 710, StopReason.FAILED),
        ("CUDA error: an illegal memory access was encountered", 700, StopReason.FAILED),
        ("CUDA error: out of memory", 2, StopReason.OUT_OF_MEMORY),
    ],
)
def test_a_device_that_failed_is_the_machines_fault_and_what_a_kernel_did_is_the_codes(message, code, reason):
    error = device_error(message, code)
    caught = raised_from(RuntimeError("the step failed"), error)
    assert [stop_reason(each, kills_before=NO_KILLS) for each in (error, caught)] == [reason, reason]
    on_rank = RankFailedError(rank=1, type_name="AcceleratorError", message=message, traceback="", is_transient=False)
    assert stop_reason(on_rank, kills_before=NO_KILLS) is reason
    if code is not None:
        assert stop_reason(RuntimeError(message), kills_before=NO_KILLS) is not StopReason.LOST, "of no device"


@pytest.mark.matrix
def test_after_a_device_failed_the_run_goes_on_elsewhere_and_the_report_says_why(fork_server, make_spec, open_log):
    spec = make_spec(recipe=STUCK, config={"how": "device", "at_step": 15})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.LOST, "AcceleratorError")
    assert "uncorrectable ECC" in report.failure.message
    assert decide_next(runlog, spec, clock=SystemClock()).action == "run"


@pytest.mark.matrix
def test_a_device_that_fails_in_the_copy_of_a_save_is_reported_too(fork_server, make_spec, open_log):
    checkpoints = {"every_steps": 10, "every_seconds": None}
    spec = make_spec(recipe=STUCK, config={"how": "copies", "at_step": 15}, checkpoints=checkpoints, steps=100_000)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.LOST, "AcceleratorError")
    assert report.checkpoint.step == 10


def test_a_kill_that_the_group_counted_makes_any_failure_out_of_memory(monkeypatch):
    monkeypatch.setattr(MemoryKills, "now", classmethod(lambda cls: cls(group=1, machine=1)))
    assert stop_reason(RuntimeError("lost contact"), kills_before=NO_KILLS) is StopReason.OUT_OF_MEMORY
    only_machine = MemoryKills(group=1, machine=0)
    worker = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    assert stop_reason(worker, kills_before=only_machine) is StopReason.FAILED


def test_without_a_control_group_a_killed_data_worker_and_a_kill_on_the_machine_are_out_of_memory(monkeypatch):
    monkeypatch.setattr(MemoryKills, "now", classmethod(lambda cls: cls(group=None, machine=1)))
    before = MemoryKills(group=None, machine=0)
    worker = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    assert stop_reason(worker, kills_before=before) is StopReason.OUT_OF_MEMORY
    assert stop_reason(RuntimeError("lost contact"), kills_before=before) is StopReason.FAILED


@pytest.mark.matrix
def test_a_transient_error_is_retried_after_a_back_off_and_the_run_finishes(make_spec, open_log, tmp_path):
    config = {"how": "connection", "at_step": 25, "marker": str(tmp_path / "done")}
    spec = make_spec(recipe=STUCK, config=config, policy={"max_failures": 1})
    runlog = open_log(spec)
    assert run_here(spec, runlog, on_line=lambda _: None).action == "finished"
    history = read_history(runlog)
    assert [report.stop_reason for report in history.reports] == [StopReason.FAILED, StopReason.FINISHED]
    first, second = (entry for entry in history.decisions if entry.plan is not None)
    assert (first.plan.delay_seconds, second.plan.delay_seconds) == (0, 5)
    assert "retry in 5 s" in second.reason
    waited = history.attempts[1].claim.written_at - second.written_at
    assert waited.total_seconds() >= 5


@pytest.mark.matrix
def test_a_data_worker_that_dies_is_transient(make_spec, open_log, tmp_path):
    spec = make_spec(recipe="tests.recipes.stuck:dying_worker", config={"marker": str(tmp_path / "died")})
    runlog = open_log(spec)
    assert run_here(spec, runlog, on_line=lambda _: None).action == "finished"
    first = read_history(runlog).reports[0]
    assert (first.stop_reason, first.failure.is_transient) == (StopReason.FAILED, True)
    assert "DataLoader worker" in first.failure.message
