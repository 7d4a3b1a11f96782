"""Programs whose state is a folder of their own: committed as a whole, verified when it is restored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import segue
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import encode_tree
from segue.errors import MalformedCheckpointError, NoMetricError
from segue.interop.export_files import folder_of
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.programs.folder import Folder
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/folder_loop.py"


@pytest.fixture
def make_program(make_spec, tmp_path):
    """A run of the program with these options, which works in the test's folder."""

    def make(*options, **fields):
        places = ["--folder", str(tmp_path / "state"), "--save-to", str(tmp_path / "ours.pt")]
        command = ["python", str(PROGRAM), *places, *options]
        common = {"steps": 40, "continuity": {"rehearsal": "off", "witness_steps": 2}}
        return make_spec(recipe=None, program={"command": command}, **(common | fields))

    return make


@pytest.mark.matrix
def test_a_killed_program_goes_on_from_the_folder_it_committed(fork_server, make_program, open_log, tmp_path):
    hangs = make_program("--hang-at", "13")
    runlog = open_log(hangs)
    fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    (tmp_path / "state/parts/left-over").write_text("from a process that is gone")
    report = fork_server.run_attempt(runlog, make_program())
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), 2)
    command = [sys.executable, str(PROGRAM), "--save-to", "bare.pt"]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    bare, ours = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, ours[name]) for name, value in bare.items())


@pytest.mark.matrix
def test_the_best_model_is_exported_with_the_folder_as_it_was(fork_server, make_program, open_log, tmp_path):
    hangs = make_program("--best-until", "10", "--hang-at", "13")
    runlog = open_log(hangs)
    fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    best = (tmp_path / "state/parts/best.pt").read_bytes()
    shutil.rmtree(tmp_path / "state")
    spec = make_program("--best-until", "10")
    assert fork_server.run_attempt(runlog, spec).stop_reason is StopReason.FINISHED
    for file_format in ("torch", "safetensors"):
        report = segue.export_checkpoint(
            spec.run_id, tmp_path / file_format, store=spec.store, step="best", file_format=file_format
        )
        names = [file.name for file in report.files]
        assert report.step == 40
        assert names[:2] == ["README.md", "best/model.pt"]
        assert [name for name in names if name.startswith("folder")] == [
            "folder/parts/best.pt",
            "folder/parts/empty",
            "folder/parts/notes.json",
            "folder/state.pt",
        ]
        for name, content in (("best/model.pt", best), ("folder/parts/best.pt", best), ("folder/parts/empty", b"")):
            assert (tmp_path / file_format / name).read_bytes() == content
        assert "`best/`" in (tmp_path / file_format / "README.md").read_text()
    loaded = segue.load_checkpoint(spec.run_id, store=spec.store, step="best")["folder"]
    assert bytes(loaded["files"][loaded["best"]["model.pt"]].numpy()) == best


def test_without_a_best_model_the_metric_decides_and_there_is_none(fork_server, make_program, open_log, tmp_path):
    spec = make_program()
    fork_server.run_attempt(open_log(spec), spec)
    with pytest.raises(NoMetricError):
        segue.export_checkpoint(spec.run_id, tmp_path / "out", store=spec.store, step="best")


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", ""])
def test_a_file_outside_of_the_folder_is_neither_restored_nor_exported(tmp_path, name):
    tree = {"files": {name: torch.ones(3, dtype=torch.uint8)}}
    folder = Folder()
    folder.restore(tree)
    with pytest.raises(MalformedCheckpointError, match="leads out of the folder"):
        folder.write_to(tmp_path / "state")
    for hostile in (tree, {"files": {"a": torch.ones(3, dtype=torch.uint8)}, "best": {name: "a"}}):
        tensors = {}
        skeleton = encode_tree(hostile, path="folder", tensors=tensors)
        with pytest.raises(MalformedCheckpointError, match="leads out of the folder"):
            folder_of(Snapshot(skeletons={"folder": skeleton}, tensors=tensors))
    assert [*tmp_path.iterdir()] == []


def test_a_notice_waits_for_the_folder_of_one_more_step(fork_server, make_program, open_log):
    slow = make_program("--pause-seconds", "0.05", "--steps", "400", steps=400)
    runlog = open_log(slow)
    report = fork_server.run_attempt(runlog, slow, observer=stop_when_proven(signal.SIGTERM))
    assert (report.stop_reason, report.lost_steps) == (StopReason.NOTICE, 0)
    assert report.to_step == report.checkpoint.step > 10


def test_a_program_that_never_commits_its_folder_is_told(fork_server, make_program, open_log):
    spec = make_program("--never-writes")
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert "the folder of that step was not committed. Fix: call run.commit_folder(path)" in report.failure.message


@pytest.mark.matrix
def test_a_folder_with_the_users_own_files_is_left_alone(fork_server, make_program, open_log, tmp_path):
    hangs = make_program("--hang-at", "13")
    runlog = open_log(hangs)
    fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("irreplaceable")
    report = fork_server.run_attempt(runlog, make_program("--folder", str(tmp_path / "mine")))
    assert report.stop_reason is StopReason.FAILED
    assert "the folder has files that do not belong to this run" in report.failure.message
    assert (tmp_path / "mine/thesis.tex").read_text() == "irreplaceable"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "for n in run.steps():\n    run.report(loss=1); run.commit_folder('x')",
            "without run.restore_folder() before",
        ),
        (
            "run.restore_folder('x')\nfor n in run.steps():\n    run.commit_folder('no')",
            "('no'): there is no such folder",
        ),
        (
            "import pathlib\nrun.restore_folder('x')\npathlib.Path('x').mkdir(); pathlib.Path('x/a').touch()\n"
            "for n in run.steps():\n    run.commit_folder('x', best={'a': 'b'})",
            "('x', best=...): 'b' is not among the committed files. Fix: give paths in the folder",
        ),
    ],
)
def test_a_wrong_use_of_folders_is_told_why(fork_server, make_spec, open_log, tmp_path, monkeypatch, source, sentence):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(f"import segue\nrun = segue.session()\n{source}")
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in report.failure.message
