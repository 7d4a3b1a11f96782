"""The benchmark's own promises: every figure or a reason, no cheating saver, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import typer

from benchmarks.__main__ import parse_size
from benchmarks.checkpoint import savers
from benchmarks.checkpoint.null_server import null_server
from benchmarks.checkpoint.peers import TorchSave
from benchmarks.checkpoint.savers import State, make_state
from benchmarks.checkpoint.saving import SaverBench, WrongBytesError
from benchmarks.checkpoint.steps import StepKind, StepSizes, TooFewStepsError, slowdown
from benchmarks.checkpoint.worker import Worker, WorkerError
from benchmarks.common.child import child_environment
from benchmarks.common.files import file_system, make_cold, resident_share
from benchmarks.common.memory import PeakMemory, family
from benchmarks.common.samples import KEYS, LIMIT_KEYS, SAVER_KEYS, UPLOADER_KEYS, Samples
from tests.benchmarks.mortal import Mortal

ROOT = Path(__file__).parents[2]
TINY = ("--size", "4MB", "--tensors", "8", "--many-tensors", "0", "--rounds", "2")
SIZES = StepSizes(matmul_batch=4, dispatch_layers=8)


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.__main__", "checkpoint", *TINY, "--folder", str(folder), *options]


@pytest.mark.soak
def test_a_tiny_run_gives_every_figure_of_the_peers_and_leaves_nothing_behind(tmp_path):
    only = "torch_save,safetensors,boto3_default"
    asked = command(tmp_path, "--no-steps", "--only", only, "--json")
    run = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    report = json.loads(run.stdout)
    assert report.keys() >= {*KEYS, *LIMIT_KEYS, "cores", "torch", "file_system", "size_bytes", "tensors", "rounds"}
    assert all(report[key] > 0 for key in LIMIT_KEYS)
    assert list(report["peers"]) == only.split(",")
    assert all(peer.keys() >= set(KEYS) for peer in report["peers"].values())
    for name, keys in (("torch_save", SAVER_KEYS), ("safetensors", SAVER_KEYS), ("boto3_default", UPLOADER_KEYS)):
        ratios = {key: report["peers"][name][key] for key in keys if "_x_" in key and key != "memory_x_state"}
        lost = ratios.pop("lost_x_memcpy", None)
        assert lost is None, "no steps were made beside a save"
        assert min(ratios.values()) > 0, ratios
    assert report["peers"]["boto3_default"]["upload_x_boto3_default"] == 1.0
    assert report["peers_failed"] == {}
    assert list(tmp_path.iterdir()) == []


def test_processes_of_a_benchmark_start_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with null_server() as port:
        assert port > 0
    look = [sys.executable, "-c", "import benchmarks.crash.forked_trainers, benchmarks.checkpoint.worker"]
    subprocess.run(look, env=child_environment(), check=True)


@pytest.mark.soak
def test_ctrl_c_leaves_neither_files_nor_processes(tmp_path):
    run = subprocess.Popen(command(tmp_path, "--only", "torch_save_thread"), cwd=ROOT, stderr=subprocess.PIPE)
    assert run.stderr is not None
    assert run.stderr.readline().startswith(b"limits: ")
    assert any(line == b"round 1 of 2\n" for line in run.stderr)
    members = family(run.pid)
    assert len(members) > 2
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) not in {0, None}
    run.stderr.close()
    assert [pid for pid in members if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


class Forgetful(TorchSave):
    """Returns before it has copied anything, so what it writes may be of a later step."""

    def prepare(self, state: State, folder: Path) -> None:
        super().prepare(state, folder)
        self._thread, self._saving = ThreadPoolExecutor(1), Future[None]()

    def save(self, state: State, step: int) -> None:
        def late() -> None:
            time.sleep(0.05)
            TorchSave.save(self, state, step)

        self._saving = self._thread.submit(late)

    def wait(self) -> None:
        self._saving.result()

    def close(self) -> None:
        self._thread.shutdown()


@pytest.mark.matrix
def test_a_saver_that_does_not_copy_before_it_returns_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setitem(savers.SAVERS, "forgetful", f"{__name__}:Forgetful")
    threads = torch.get_num_threads()
    bench = SaverBench("forgetful", size_bytes=4000, tensors=2, folder=tmp_path / "f", threads=threads)
    bench.prepare()
    saved = bench.save_marked()
    with pytest.raises(WrongBytesError):
        bench.load(saved.step)
    bench.close()


def test_a_worker_says_why_it_failed_and_takes_what_it_started_with_it(tmp_path):
    worker = Worker.start(Mortal, tmp_path / "log")
    worker.ready()
    child_pid = worker.run(Mortal.child_pid)
    with pytest.raises(WorkerError, match="ValueError: out of file descriptors"):
        worker.run(Mortal.refuse)
    assert worker.is_sound
    worker.close()
    assert not Path(f"/proc/{child_pid}").exists() or "Z" in Path(f"/proc/{child_pid}/stat").read_text().split()[2]


def test_a_worker_that_is_gone_is_named_with_its_last_words(tmp_path):
    worker = Worker.start(Mortal, tmp_path / "log")
    worker.ready()
    child_pid = worker.run(Mortal.child_pid)
    with pytest.raises(WorkerError, match="process ended with 3: killed by a bug"):
        worker.run(Mortal.die)
    assert not worker.is_sound
    worker.close()
    os.kill(child_pid, signal.SIGKILL)  # It left the session of a parent that died, so no process can find it.


def test_a_figure_that_failed_once_is_none_whatever_came_before():
    samples = Samples()
    samples.add(stall_x_memcpy=1.0, durable_x_write=2.0)
    samples.fail(("stall_x_memcpy",), "broke")
    samples.fail(("stall_x_memcpy",), "broke again")
    figures = samples.figures()
    assert (figures["stall_x_memcpy"], figures["durable_x_write"]) == (None, 2.0)
    assert samples.reasons() == {"broke": ["stall_x_memcpy"]}


def test_a_file_that_was_read_is_cold_after_make_cold(tmp_path):
    if file_system(tmp_path) == "tmpfs":
        pytest.skip("a file system in memory cannot be cold")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1_000_000))
    assert resident_share([path]) == 1.0
    assert make_cold([path])
    assert resident_share([path]) == 0.0


def test_memory_that_was_there_for_a_moment_is_in_the_peak():
    with PeakMemory(os.getpid()) as memory:
        state = make_state(size_bytes=50_000_000, tensors=2)
        time.sleep(0.3)
        with_state = memory.peak_bytes
        del state
    assert memory.peak_bytes >= with_state >= 50_000_000


def test_steps_beside_nothing_are_not_slowed():
    found = slowdown(StepKind.DISPATCH, SIZES, start=lambda: None, wait=lambda: time.sleep(0.2))
    assert found.busy_steps >= 20
    assert 0.2 < found.ratio < 5


def test_the_stall_of_a_job_is_lost_training_time():
    found = slowdown(StepKind.DISPATCH, SIZES, start=lambda: time.sleep(1.0), wait=lambda: time.sleep(0.1))
    assert found.lost_seconds >= 0.5  # Other load may slow the idle steps more than those beside the job.


def test_processes_of_a_benchmark_import_compiled_modules(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in child_environment()
    assert child_environment(OTHER="1")["OTHER"] == "1"


def test_a_job_that_is_over_at_once_gives_no_figure():
    with pytest.raises(TooFewStepsError):
        slowdown(StepKind.DISPATCH, SIZES, start=lambda: None, wait=lambda: None)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("500MB", 500_000_000), ("64MiB", 67_108_864), ("1.5 gb", 1_500_000_000), ("12", 12)]
)
def test_sizes_are_read_with_their_units(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5 apples", "0"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(typer.BadParameter):
        parse_size(text)
