"""An export is whole or not at all, and what cannot be exported is refused with what can."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segue.errors import (
    DamagedCheckpointError,
    ExportFolderError,
    NoCheckpointError,
    NoMetricError,
    PrunedCheckpointError,
    QuarantinedCheckpointError,
    UnknownStepError,
)
from segue.interop.export import ExportFormat, require_free_folder, write_export
from segue.interop.load import choose_checkpoint
from segue.runlog.entries import PruneEntry
from segue.runlog.history import Checkpoint, History
from tests.support.trained_run import Trained, flip_a_bit, names_in, read_run


@pytest.fixture
def copied(trained, tmp_path) -> Trained:
    """The same run in a store that the test may damage."""
    return read_run(Path(shutil.copytree(trained.store, tmp_path / "store")))


@pytest.mark.matrix
def test_the_step_that_is_asked_for_is_taken_and_by_default_the_newest_usable(trained):
    def chosen(step: int | None, *, history: History = trained.history, take_quarantined: bool = False) -> int:
        return choose_checkpoint(history, run_id="tiny", step=step, take_quarantined=take_quarantined).manifest.step

    assert [chosen(step) for step in (None, 10, 20, 40)] == [40, 10, 20, 40]
    assert chosen(30, take_quarantined=True) == 30
    assert chosen(None, take_quarantined=True) == 40
    with pytest.raises(QuarantinedCheckpointError, match=r"step 30 .* a person doubted it\. .* 10, 20, 40.*--quarant"):
        chosen(30)
    with pytest.raises(UnknownStepError, match=r"no checkpoint of step 35\. Fix: choose one of the steps 10, 20, 40\."):
        chosen(35)
    with pytest.raises(NoCheckpointError, match="run tiny has no usable checkpoint"):
        chosen(None, history=History())


def test_a_pruned_step_is_refused_with_those_that_are_there(trained):
    first, *others = trained.history.checkpoints
    for quarantined in (None, "torn"):
        gone = Checkpoint(first.ref, first.manifest, is_pruned=True, quarantined=quarantined)
        with pytest.raises(PrunedCheckpointError, match=r"step 10 of run tiny was pruned.* steps 20, 40\."):
            choose_checkpoint(History(checkpoints=(gone, *others)), run_id="tiny", step=10, take_quarantined=True)


@pytest.mark.parametrize(("mode", "step"), [("min", 20), ("max", 40)])
def test_the_best_is_the_one_with_the_best_metric(trained, mode, step):
    metrics = {10: None, 20: 1.0, 40: 2.0}
    rated = [
        Checkpoint(c.ref, c.manifest.model_copy(update={"metric": metrics[c.manifest.step]}))
        for c in trained.history.usable
    ]
    spec = trained.history.spec
    checkpoints = spec.checkpoints.model_copy(update={"best": mode})
    history = History(spec=spec.model_copy(update={"checkpoints": checkpoints}), checkpoints=tuple(rated))
    assert choose_checkpoint(history, run_id="tiny", step="best", take_quarantined=False).manifest.step == step


def test_without_a_metric_none_is_the_best(trained):
    bare = [Checkpoint(c.ref, c.manifest.model_copy(update={"metric": None})) for c in trained.history.usable]
    with pytest.raises(NoMetricError, match=r"no usable checkpoint of run tiny has a metric.* Fix: give the recipe"):
        choose_checkpoint(History(checkpoints=tuple(bare)), run_id="tiny", step="best", take_quarantined=False)


def test_of_two_checkpoints_of_one_step_the_usable_one_is_taken(trained):
    sound = trained.checkpoint(10)
    torn = Checkpoint(sound.ref.model_copy(update={"slot": 99}), sound.manifest, quarantined="torn")
    history = History(checkpoints=(sound, torn))
    assert choose_checkpoint(history, run_id="tiny", step=10, take_quarantined=True) is sound


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_bit, "crc32c"),
        (Path.unlink, "is missing from the store"),
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "its manifest has"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_nothing_is_written_anywhere(copied, tmp_path, damage, said):
    (shard,) = copied.store.glob("tiny/attempts/*/step-000000040/*.safetensors")
    damage(shard)
    before = {str(path) for path in tmp_path.rglob("*")}
    with pytest.raises(DamagedCheckpointError) as raised:
        copied.export(tmp_path / "out", step=40)
    assert raised.value.exit_code == 1
    assert shard.name in raised.value.key
    assert said in str(raised.value)
    assert "choose one of the steps 10, 20." in str(raised.value)
    assert {str(path) for path in tmp_path.rglob("*")} == before


def test_a_checkpoint_that_the_run_prunes_meanwhile_is_not_called_damaged(copied, tmp_path):
    asked_for, slot = copied.checkpoint(10), copied.checkpoint(10).ref.slot
    log = read_run(copied.store).log
    log.append(lambda stamp: PruneEntry(**stamp(epoch=log.highest_epoch), slots=(slot,)), epoch=log.highest_epoch)
    for path in copied.store.glob("tiny/attempts/*/step-000000010/*"):
        path.unlink()
    with pytest.raises(PrunedCheckpointError):
        write_export(copied.log, asked_for, file_format=ExportFormat.TORCH, folder=tmp_path / "out")


def test_a_folder_with_anything_in_it_is_refused_and_keeps_it(trained, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    before = names_in(tmp_path)
    for name, why in (("full", "is not empty"), ("link", "is not empty"), ("file", "is a file")):
        with pytest.raises(ExportFolderError, match=f"{name} {why}") as raised:
            trained.export(tmp_path / name, step=20)
        assert raised.value.exit_code == 2
    assert names_in(tmp_path) == before
    assert (tmp_path / "full" / ".hidden").read_text() == (tmp_path / "file").read_text() == "mine"


def test_a_place_that_no_folder_can_be_put_into_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportFolderError, match=r"is a mount point.*name a new folder inside it"):
        require_free_folder(Path("/proc"))
    with pytest.raises(ExportFolderError, match=r"cannot be written \("):
        require_free_folder(Path("~nobody-of-that-name/out"))


def test_below_a_file_there_is_no_folder(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportFolderError, match=r"cannot be written \(Not a directory\)"):
        trained.export(tmp_path / "file" / "out", step=20)


def test_an_empty_folder_and_one_reached_by_a_link_are_filled(trained, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    report = trained.export(tmp_path / "link", step=20)
    assert report.folder == str((tmp_path / "empty").resolve())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "model.pt").exists()


def test_what_fills_the_folder_meanwhile_is_not_touched(trained, tmp_path):
    def fill(doing: str) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs").write_text(doing)

    with pytest.raises(ExportFolderError, match="Directory not empty"):
        trained.export(tmp_path / "out", step=20, progress=fill)
    assert names_in(tmp_path) == {"out"}
    assert names_in(tmp_path / "out") == {"theirs"}


def test_an_export_that_is_interrupted_anywhere_leaves_nothing(trained, tmp_path):
    seen: list[str] = []
    trained.export(tmp_path / "whole", step=20, progress=seen.append)
    assert {"writing model", "writing the loss curve", "waiting for the disk"} < set(seen)
    shutil.rmtree(tmp_path / "whole")
    for moment in range(len(seen)):
        told = iter(range(len(seen)))

        def interrupt(doing: str, moment: int = moment, told: object = told) -> None:
            if next(told) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained.export(tmp_path / "out", step=20, progress=interrupt)
        assert names_in(tmp_path) == set()


@pytest.mark.matrix
def test_a_kill_before_the_end_leaves_no_folder_of_that_name(trained, tmp_path):
    die = (
        "import os, sys; from pathlib import Path; from tests.support.trained_run import read_run\n"
        "def tell(doing):\n"
        "    if doing == 'waiting for the disk': os.kill(os.getpid(), 9)\n"
        "read_run(Path(sys.argv[1])).export(Path(sys.argv[2]), step=20, progress=tell)"
    )
    command = [sys.executable, "-c", die, str(trained.store), str(tmp_path / "out")]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = names_in(tmp_path)
    assert left.startswith(".out.unfinished-")
    trained.export(tmp_path / "out", step=20)
    assert (tmp_path / "out" / "model.pt").exists()
