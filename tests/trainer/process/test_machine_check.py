"""The check of a machine before the claim, in real trainer processes on a machine with a full disk, a wrong product or
uncorrected errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from segue.controller.segment import TrainerEnd, report_or_lost
from segue.launch.assignment import Assignment
from segue.records import Capacity, Machine, StopReason
from segue.runlog.history import read_history
from segue.trainer.process.machine_check import LIMIT_SECONDS, begin, finish, machine_here
from tests.support.forked_trainers import next_plan

CPU = torch.device("cpu")
WRONG_PRODUCT = """
import sys, torch
of_torch = torch.mm
torch.mm = lambda a, b: of_torch(a, b) + (torch.arange(a.shape[0]) == 3)
from segue.trainer.main import main
sys.exit(main())
"""


def trained(runlog, spec, *command: str, **variables: str):
    """The report of an attempt that a process with this command makes."""
    plan = next_plan(runlog, spec)
    assignment = Assignment(spec=spec, plan=plan).model_dump_json()
    call, environment = [sys.executable, *command], os.environ | variables
    found = subprocess.run(call, input=assignment, text=True, capture_output=True, check=False, env=environment)
    return report_or_lost(runlog.reload(), plan, TrainerEnd(found.returncode, printed=found.stderr[-2000:]))


def assert_unfit(runlog, report, problem: str, **machine: str):
    history = read_history(runlog.reload())
    # The attempt is neither a preemption nor a death: its machine did not start it.
    assert (report.stop_reason, report.attempt_id, history.attempts) == (StopReason.START_FAILED, None, ()), report.note
    assert (report.was_refused, report.got_capacity) == (True, False)
    assert "failed the check before the claim" in report.note
    entry = history.unfit_machines[-1]
    assert problem in entry.machine_check.problems[0]
    assert entry.machine == Machine(**{"kind": "host", "name": socket.gethostname()} | machine)
    return entry


@pytest.fixture
def full_disk(tmp_path):
    if os.geteuid():
        pytest.skip("only root may mount a tmpfs")
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.matrix
def test_a_full_disk_is_recorded_and_no_reason_to_refuse_a_machine(full_disk, make_spec, open_log):
    spec = make_spec(steps=20, device="cpu")
    runlog = open_log(spec)
    report = trained(runlog, spec, "-m", "segue.trainer.main", TMPDIR=str(full_disk), SLURMD_NODENAME="n7")
    assert report.stop_reason is StopReason.FINISHED
    claim = read_history(runlog.reload()).attempts[0].claim
    assert claim.machine_check.results["disk"] == f"1 MiB cannot be written to {full_disk} (No space left on device)"
    assert claim.machines == (Machine(kind="slurm", name="n7"),)


@pytest.mark.matrix
def test_a_machine_that_multiplies_wrongly_is_refused_and_a_sound_one_trains_and_shows_its_check(make_spec, open_log):
    spec = make_spec(steps=20, device="cpu")
    runlog = open_log(spec)
    for _ in range(7):  # More than `max_lost_in_place`, which ends a run.
        report = trained(runlog, spec, "-c", WRONG_PRODUCT)
    assert next_plan(runlog, spec).capacity is Capacity.SPOT
    assert_unfit(runlog, report, "product: a product of two matrices on cpu has a wrong number")
    assert trained(runlog, spec, "-m", "segue.trainer.main").stop_reason is StopReason.FINISHED
    claim = read_history(runlog.reload()).attempts[0].claim
    assert claim.machines == (machine_here(CPU),)
    assert claim.machine_check.results.keys() == {"memory", "product", "disk", "device", "store"}
    assert claim.machine_check.problems == ()
    assert claim.machine_check.seconds < LIMIT_SECONDS


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a program in the place of nvidia-smi."""

    def answer(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return answer


@pytest.mark.parametrize(
    ("errors", "problems"),
    [("0", ()), ("[N/A]", ()), ("3", ("device: 3 uncorrected ECC errors since the driver was loaded, 16 of 16",))],
)
def test_uncorrected_errors_of_the_own_accelerator_count_and_those_of_others_do_not(driver, errors, problems):
    driver(f"echo 'GPU-other, 9, 16, 16'; echo 'GPU-own, {errors}, 16, 16'")
    found = finish(CPU, Machine(kind="host", name="h", devices=("GPU-own",)))
    assert len(found.problems) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found.problems, problems, strict=True))


@pytest.mark.matrix
def test_a_driver_that_does_not_answer_delays_the_claim_by_three_seconds_at_most_and_is_no_problem(driver):
    driver("exec sleep 60")
    begin()
    found = finish(CPU, Machine(kind="host", name="h"))
    assert found.problems == ()
    assert "no answer" in found.results["device"]
    assert found.results["disk"].endswith("read back")


def test_an_error_of_the_accelerator_in_the_check_is_a_problem_of_the_machine(monkeypatch):
    def mm(*_: torch.Tensor) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(torch, "mm", mm)
    found = finish(CPU, Machine(kind="host", name="h"))
    assert found.problems == ("product: AcceleratorError: CUDA error: uncorrectable ECC error encountered",)


def test_an_error_of_torch_that_is_not_of_the_device_is_recorded_only(monkeypatch):
    def mm(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not implemented here")

    monkeypatch.setattr(torch, "mm", mm)
    found = finish(CPU, Machine(kind="host", name="h"))
    assert (found.problems, found.results["product"]) == ((), "RuntimeError: not implemented here")
