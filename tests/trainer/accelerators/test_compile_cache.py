"""Kernels that torch.compile timed: on another machine they may be others, which is no loss of state."""

from __future__ import annotations

import signal
import sys

import pytest
import torch

from segue.records import Environment, StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.process import environment
from segue.trainer.process.environment import compile_cache_id
from tests.support.observers import stop_when_proven

RECIPE = "tests.trainer.accelerators.timed_kernels:build"


@pytest.fixture
def resumed(fork_server, make_spec, open_log, tmp_path):
    """Kills the run when its checkpoint can be verified, and resumes it with the cache folder of this name."""

    def run(folder, **config):
        spec = make_spec(recipe=RECIPE, steps=30, config=config, continuity={"rehearsal": "stop"})
        runlog = open_log(spec)
        for name, observer in (("old", stop_when_proven(signal.SIGKILL)), (folder, None)):
            environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)}
            report = fork_server.run_attempt(runlog, spec, observer=observer, environment=environment)
        return read_history(runlog.reload()).attempts[-1].verdict, report

    return run


@pytest.mark.matrix
def test_kernels_timed_again_on_another_machine_break_no_resume(resumed):
    verdict, report = resumed("new")
    assert report.stop_reason is StopReason.FINISHED, report.failure and report.failure.message
    assert verdict.kind is VerdictKind.EQUIVALENT
    assert "kernels that torch.compile timed" in verdict.sentence


@pytest.mark.matrix
def test_a_resume_with_the_same_kernels_is_exact(resumed):
    verdict, _ = resumed("old")
    assert verdict.kind is VerdictKind.EXACT
    assert verdict.environment_changes == ()


@pytest.mark.matrix
def test_a_lost_optimizer_is_named_beside_other_kernels(resumed, tmp_path):
    verdict, report = resumed("new", marker=str(tmp_path / "built"))
    assert report.failure.type == "BrokenResumeError"
    assert (verdict.kind, verdict.findings[0].component) == (VerdictKind.BROKEN, "optimizer")


@pytest.fixture
def compiles(monkeypatch, tmp_path):
    """This process has passed something to torch.compile, and uses a cache folder of its own."""
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", sys)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_id_of", environment._id_of.__wrapped__)
    return tmp_path / "cache"


def test_a_folder_has_one_name_for_all_processes_until_it_is_deleted(compiles):
    name = compile_cache_id(torch.device("cuda:0"))
    assert name
    assert compile_cache_id(torch.device("cuda:0")) == name
    assert [file.name for file in compiles.iterdir()] == ["segue-cache-id"]
    (compiles / "segue-cache-id").unlink()
    assert compile_cache_id(torch.device("cuda:0")) not in ("", name)


def test_a_folder_that_cannot_be_written_has_another_name_each_time(compiles):
    compiles.mkdir()
    (compiles / "segue-cache-id").mkdir()  # No file can be made or read here, even by root.
    with pytest.raises(IsADirectoryError):
        (compiles / "segue-cache-id").read_text()
    assert compile_cache_id(torch.device("cuda:0")) != compile_cache_id(torch.device("cuda:0"))


def test_the_processor_has_a_name_only_if_kernels_are_timed_and_nothing_has_one_without_compile(compiles, monkeypatch):
    import torch._inductor.config as inductor

    assert compile_cache_id(torch.device("cpu")) == ""
    monkeypatch.setattr(inductor, "max_autotune_gemm", True)
    assert compile_cache_id(torch.device("cpu"))
    monkeypatch.delitem(sys.modules, "torch._inductor.compile_fx")
    assert compile_cache_id(torch.device("cuda:0")) == ""


def test_environments_differ_in_kernels_only_if_both_timed_some():
    made = Environment(torch="2.13", device="NVIDIA H200", instruction_set="AVX2", threads=1, compile_cache="a")
    other, none = (made.model_copy(update={"compile_cache": each}) for each in ("b", ""))
    assert made.has_other_kernels(other)
    assert not made.has_other_kernels(made)
    assert not made.has_other_kernels(none)
    assert not none.has_other_kernels(made)
    assert (made.differs_from(other), made.short_id) == ((), other.short_id)
    assert "compile_cache" not in none.model_dump_json()
