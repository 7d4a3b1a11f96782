"""The doctor's checks of a machine fail on machines that are too small or differ from what a run needs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from segue.doctor import machine
from segue.doctor.check import CheckOutcome, Result
from segue.doctor.probe import Probed, TorchFacts
from segue.doctor.subject import Rehearsed, Subject
from segue.records import Environment
from segue.runlog.history import History
from segue.spec import StoreSpec
from tests.doctor.showing import bad, good, makes_fail

GIB = 2**30
BEFORE = Environment(torch="2.13.0", python="3.11", device="cpu", instruction_set="AVX2", threads=1)


@pytest.fixture
def subject(make_spec):
    def make(state_bytes=None, facts=None, **fields):
        spec = make_spec(**fields)
        found = Subject(spec=spec, store=spec.store)
        found.opened.check()
        if state_bytes is not None:
            found.rehearsed = Rehearsed(save_seconds=1.0, step_seconds=0.1, state_bytes=state_bytes)
        found.probed = Probed(facts or TorchFacts("3.11", "2.13.0", 0, False), None)
        return found

    return make


@makes_fail("machine.torch")
def test_a_torch_that_cannot_be_imported_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = machine.torch(Subject(store=StoreSpec(url=str(tmp_path / "store"))))
    bad("machine.torch", result, "fail", "torch cannot be imported", "libcudart.so.13")


@makes_fail("machine.shared-memory")
def test_a_small_or_missing_shared_memory_is_found(tmp_path):
    good(machine.judge_shared_memory(tmp_path, 2 * GIB))
    bad("machine.shared-memory", machine.judge_shared_memory(tmp_path, 64 * 2**20), "warn", "67 MB", "--shm-size")
    bad("machine.shared-memory", machine.shared_memory(tmp_path / "none"), "fail", "cannot be used", "tmpfs")


@pytest.mark.matrix
@makes_fail("machine.file-descriptors")
@pytest.mark.parametrize(("limit", "outcome"), [(200, "fail"), (800, "warn")])
def test_a_low_limit_on_open_files_is_found(limit, outcome):
    look = (
        f"import json, resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); "
        "from segue.doctor.machine import file_descriptors; print(json.dumps(file_descriptors()))"
    )
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    found, reason, fix = json.loads(said.stdout)
    bad(
        "machine.file-descriptors",
        Result(CheckOutcome(found), reason, fix),
        outcome,
        f"only {limit} files",
        "ulimit -n",
    )


@makes_fail("machine.cores")
def test_fewer_cores_than_ranks_are_found(subject, tmp_path):
    limit = tmp_path / "cpu.max"
    limit.write_text("max 100000\n")
    bad("machine.cores", machine.cores(subject(ranks=1024), groups=tmp_path), "warn", "ranks: 1024: too few")
    limit.write_text("50000 100000\n")
    bad("machine.cores", machine.cores(subject(), groups=tmp_path), "warn", "cores: 0.5, ranks: 1")
    limit.unlink()
    (tmp_path / "cpu").mkdir()
    for name, text in {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}.items():
        (tmp_path / "cpu" / name).write_text(text)
    bad("machine.cores", machine.cores(subject(), groups=tmp_path), "warn", "cores: 1.5, ranks: 1")


@makes_fail("machine.memory")
def test_a_state_that_does_not_fit_into_memory_with_its_copies_is_found(subject):
    good(machine.judge_memory(GIB, copies=2, free=3 * GIB))
    bad("machine.memory", machine.judge_memory(GIB, copies=2, free=2.2 * GIB), "warn", "2 copies")
    bad("machine.memory", machine.judge_memory(GIB, copies=2, free=2.0 * GIB), "fail", "2.3 GB of memory")
    bad("machine.memory", machine.memory(subject(state_bytes=10**16)), "fail", "3 copies of 10000 TB")
    assert machine.memory(subject()).outcome == "skipped"


@makes_fail("machine.disk")
def test_a_disk_without_room_for_the_checkpoints_that_are_kept_is_found(subject, tmp_path):
    good(machine.disk(subject(state_bytes=1000)))
    bad("machine.disk", machine.disk(subject(state_bytes=10**16)), "fail", "for 3 checkpoints and the next one")
    assert machine.disk(subject()).outcome == "skipped", "nothing is known of the size"
    (tmp_path / "file").write_text("")
    fast = {"fast_folder": str(tmp_path / "file" / "fast")}
    bad("machine.disk", machine.disk(subject(checkpoints=fast)), "fail", "cannot be created or written")


def test_checkpoints_that_are_on_the_disk_need_no_room_again(subject, monkeypatch):
    found = subject(state_bytes=1000)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=1500))
    assert "needs 4 kB for 3 checkpoints" in machine.disk(found).reason
    stored = found.opened.root / found.spec.run_id / "attempts" / "seg000-a1-e1" / "step-000000010" / "rank-0"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(bytes(2000))
    assert "the next one beside the 2 kB that are there, " in machine.disk(found).reason
    (stored.parent / "rank-1").write_bytes(bytes(9000))
    good(machine.disk(found))


@makes_fail("machine.accelerator")
def test_an_accelerator_that_torch_does_not_see_is_found(subject, tmp_path):
    good(machine.accelerator(subject(), devices=tmp_path))
    (tmp_path / "nvidia0").touch()
    result = machine.accelerator(subject(), devices=tmp_path)
    bad("machine.accelerator", result, "warn", "torch does not see it", "nvidia-smi")
    good(machine.accelerator(subject(device="cpu"), devices=tmp_path))


@makes_fail("machine.accelerator")
@pytest.mark.parametrize(
    ("fields", "accelerators", "words"),
    [({"device": "cuda"}, 0, "device is cuda"), ({"device": "cuda", "ranks": 4}, 2, "4 ranks need 4 accelerators")],
)
def test_missing_accelerators_are_found(make_spec, fields, accelerators, words):
    result = machine.judge_accelerator(make_spec(**fields), History(), accelerators=accelerators, has_gpu=False)
    bad("machine.accelerator", result, "fail", words, "nvidia-smi")
    good(machine.judge_accelerator(make_spec(), History(), accelerators=0, has_gpu=False))
    good(machine.judge_accelerator(make_spec(device="cuda"), History(), accelerators=1, has_gpu=True))


@pytest.mark.parametrize("cluster", [{"slurm": {"spot": "preemptible", "on_demand": "batch"}}, {"ray": {}}])
def test_the_accelerators_of_a_cluster_are_not_those_of_a_login_node(make_spec, cluster):
    spec = make_spec(device="cuda", ranks=2, **cluster)
    result = machine.judge_accelerator(spec, History(), accelerators=0, has_gpu=False)
    assert (result.outcome, "on a node" in result.reason) == ("skipped", True)
    good(machine.judge_accelerator(spec, History(), accelerators=2, has_gpu=True))


@makes_fail("machine.determinism")
def test_variables_that_undo_deterministic_kernels_are_found(subject):
    good(machine.judge_determinism({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}))
    result = machine.judge_determinism({"CUBLAS_WORKSPACE_CONFIG": ":0:0"})
    bad("machine.determinism", result, "fail", "CUBLAS_WORKSPACE_CONFIG=:0:0", "unset")
    bad("machine.determinism", machine.judge_determinism({"MKL_CBWR": "AVX2"}), "warn", "MKL_CBWR=AVX2")
    assert machine.determinism(subject()).outcome == "skipped"


@makes_fail("machine.nccl")
def test_a_torch_without_nccl_is_found_where_ranks_need_it(make_spec):
    spec = make_spec(ranks=2, device="cuda")
    bad("machine.nccl", machine.judge_nccl(spec, accelerators=2, has_nccl=False), "fail", "2 ranks", "torch for CUDA")
    good(machine.judge_nccl(spec, accelerators=2, has_nccl=True))
    assert machine.judge_nccl(make_spec(), accelerators=2, has_nccl=False).outcome == "skipped"


@makes_fail("machine.versions")
@pytest.mark.parametrize(("python", "torch"), [("3.12", "2.13.0"), ("3.11", "2.14.0")])
def test_another_python_or_torch_than_the_run_has_trained_with_is_found(python, torch):
    good(machine.judge_versions(BEFORE, python="3.11", torch_version="2.13.0"))
    result = machine.judge_versions(BEFORE, python=python, torch_version=torch)
    bad("machine.versions", result, "warn", "the run has trained with", "use the image")
