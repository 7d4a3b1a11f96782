"""Lightning with its own logger and `ModelCheckpoint`: each attempt works in a folder of its own, and none is lost."""

from __future__ import annotations

import copy
import signal
from pathlib import Path

import pytest
import torch

from segue.integrations.lightning import KeptFiles
from segue.integrations.lightning_paths import note, noted, put_paths, with_names
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/lightning_module.py"


@pytest.mark.matrix
def test_a_killed_trainer_with_its_own_logger_and_checkpoints_commits_what_an_undisturbed_one_does(
    fork_server, make_spec, open_log, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def spec_of(run_id, *options):
        command = ["python", str(PROGRAM), *options]
        return make_spec(recipe=None, run_id=run_id, program={"command": command}, steps=36)

    whole, stopped = spec_of("whole"), spec_of("stopped")
    logs = {spec.run_id: open_log(spec) for spec in (whole, stopped)}
    assert fork_server.run_attempt(logs["whole"], whole).stop_reason is StopReason.FINISHED
    hangs = spec_of("stopped", "--hang-at", "22")
    killed = fork_server.run_attempt(logs["stopped"], hangs, observer=stop_when_proven(signal.SIGKILL))
    assert killed.stop_reason is StopReason.LOST
    again = fork_server.run_attempt(logs["stopped"], stopped)
    assert (again.stop_reason, again.failure) == (StopReason.FINISHED, None)
    histories = {name: read_history(runlog.reload()) for name, runlog in logs.items()}
    assert histories["stopped"].attempts[1].verdict.kind is VerdictKind.EXACT
    folders = {name: history.newest.manifest.components["folder"] for name, history in histories.items()}
    assert folders["whole"] == folders["stopped"]
    assert len(list(tmp_path.glob("lightning_logs/version_*"))) == 3


def state_of(folder: str, *names: str, best: str | None = None) -> dict:
    """What `ModelCheckpoint` keeps after it wrote these files."""
    paths = [f"{folder}/{name}" for name in names]
    return {
        "monitor": "error",
        "dirpath": folder,
        "best_model_path": f"{folder}/{best or names[0]}",
        "best_model_score": torch.tensor(0.5),
        "best_k_models": {path: torch.tensor(float(number)) for number, path in enumerate(paths)},
        "kth_best_model_path": paths[-1],
        "last_model_path": "",
    }


def checkpoint_of(state: dict) -> dict:
    return {"epoch": 3, "callbacks": {"ModelCheckpoint{}": state, "Other": {"dirpath": 1}}}


@pytest.mark.parametrize(
    "other",
    [
        state_of("/b/version_1", "epoch=1.ckpt", "epoch=2.ckpt"),
        state_of("/a/version_0", "epoch=1-v1.ckpt", "epoch=2-v3.ckpt"),
    ],
)
def test_equal_runs_have_equal_states_wherever_their_files_are(other):
    before = checkpoint_of(state_of("/a/version_0", "epoch=1.ckpt", "epoch=2.ckpt"))
    kept = copy.deepcopy(before)
    (one, _), (two, _) = with_names(before), with_names(checkpoint_of(other))
    assert repr(one) == repr(two)
    assert repr(before) == repr(kept), "the Trainer's own state is left as it is"


def test_files_of_one_name_stay_apart():
    _, paths = with_names(checkpoint_of(state_of("/a", "best.ckpt", "best-v1.ckpt")))
    assert sorted(paths.values()) == ["/a/best-v1.ckpt", "/a/best.ckpt"]


def test_an_attempt_on_the_same_machine_has_the_files_of_the_one_before(tmp_path):
    old = tmp_path / "version_0"
    old.mkdir()
    (old / "epoch=1.ckpt").touch()
    stored, paths = with_names(checkpoint_of(state_of(str(old), "epoch=1.ckpt", "epoch=2.ckpt")))
    file = tmp_path / "lightning.ckpt"
    torch.save(stored, file)
    note(tmp_path / "places.json", file, paths)
    put_paths(stored, noted(tmp_path / "places.json", file), {"ModelCheckpoint{}": "/new"})
    state = stored["callbacks"]["ModelCheckpoint{}"]
    assert (state["dirpath"], state["best_model_path"]) == ("/new", str(old / "epoch=1.ckpt"))
    assert list(state["best_k_models"]) == [str(old / "epoch=1.ckpt"), "/new/epoch=2.ckpt"], "one file is gone"
    assert (state["kth_best_model_path"], state["last_model_path"]) == ("/new/epoch=2.ckpt", "")


def test_kept_files_are_committed_by_their_names_and_put_back_on_another_machine(tmp_path, caplog):
    best, gone = tmp_path / "a" / "best.ckpt", tmp_path / "a" / "gone.ckpt"
    kept = KeptFiles(tmp_path / "kept")
    for path in (best, gone):
        kept.add(path).write_bytes(path.name.encode())
    committed = kept.of(tmp_path / "run", {"segue:0/best.ckpt": str(best)})
    assert {name: file.read_bytes() for name, file in committed.items()} == {"kept/0/best.ckpt": b"best.ckpt"}
    assert [file.read_bytes() for file in (tmp_path / "kept").iterdir()] == [b"best.ckpt"], "others fill the disk"
    assert kept.of(tmp_path / "run", {"segue:0/gone.ckpt": str(gone)}) == {}

    there, other = tmp_path / "b" / "best.ckpt", KeptFiles(tmp_path / "elsewhere")
    (tmp_path / "run" / "kept" / "0").mkdir(parents=True)
    (tmp_path / "run" / "kept" / "0" / "best.ckpt").write_bytes(b"best.ckpt")
    paths = {"segue:0/best.ckpt": str(there), "segue:1/gone.ckpt": str(tmp_path / "b" / "gone.ckpt")}
    other.put_back(tmp_path / "run", paths)
    assert there.read_bytes() == b"best.ckpt"
    assert f"1 files of ModelCheckpoint are not on this machine: {tmp_path}/b/gone.ckpt" in caplog.text
    (again,) = other.of(tmp_path / "run", paths).values()
    assert again.read_bytes() == b"best.ckpt"
    assert not (tmp_path / "run" / "kept").exists()


def test_notes_of_another_checkpoint_count_for_nothing(tmp_path):
    (tmp_path / "x.ckpt").touch()
    file, places = tmp_path / "lightning.ckpt", tmp_path / "places.json"
    torch.save({"step": 1}, file)
    note(places, file, {"segue:0/x.ckpt": str(tmp_path / "x.ckpt")})
    assert noted(places, file) == {"segue:0/x.ckpt": str(tmp_path / "x.ckpt")}
    torch.save({"step": 2}, file)
    assert noted(places, file) == {}
    places.write_text("{")
    assert noted(places, file) == {}


def test_a_file_of_the_users_own_keeps_its_paths():
    own = checkpoint_of(state_of("/a/version_0", "epoch=1.ckpt"))
    kept = copy.deepcopy(own)
    put_paths(own, {}, {"ModelCheckpoint{}": "/new"})
    assert repr(own) == repr(kept)
