"""What a drill says of runs that were not alike, had no room, or share a folder; each with a fix that is one."""

from __future__ import annotations

import io
import json

import pytest
import torch

from segue.records import StopReason
from segue.spec import StoreSpec
from segue.verification.drill_comparison import differing_before
from segue.verification.folder_entries import folder_differences
from segue.verification.scratch_place import RunPlace
from segue.verification.shared_folder import SharedFolder
from tests.verification.drills import EXACT, KILL, STATE, Pair
from tests.verification.test_junit import report

REFUSED = (
    "failed: the program loops over run.epochs(4, 8), but at the checkpoint it looped over run.epochs(8). "
    "Fix: let it loop again."
)


@pytest.mark.parametrize(
    ("reached", "fix"),
    [
        (0, "raise --steps, because commits"),
        (90, "raise --steps, because commits"),
        (40, "give --steps 40: the script ends by itself at step 40"),
        (11, "let the script train for at least 12 steps: the script ends by itself at step 11"),
    ],
)
def test_a_script_that_ends_by_itself_gets_no_more_steps(reached, fix):
    made = report(kills=0, notices=0, missed=(KILL,), resumes=(), reached=reached)
    assert made.room.startswith(fix)
    assert [problem.fix for problem in made.problems] == [made.room]


def test_a_run_that_was_refused_says_why_and_has_its_own_fix():
    made = report(kills=0, notices=0, missed=(KILL,), resumes=(), identical=False, ended=REFUSED)
    (problem,) = made.problems
    assert problem.sentence == f"the disturbed run did not finish ({REFUSED.partition('. Fix')[0]})"
    assert problem.fix == "let it loop again."


def test_runs_that_differ_before_the_first_disturbance_are_not_blamed_on_a_resume():
    made = report(identical=False, differing=("model", "optimizer"), apart_from=20, shared=("weights.pt",))
    (problem,) = made.problems
    assert problem.sentence == (
        "the two runs already differ in model, optimizer at step 20, before the first disturbance; both runs work in "
        "this folder, and the disturbed run found files of the other run: weights.pt"
    )
    assert problem.fix.startswith("let the script read weights.pt only `if not run.is_active`, or seed everything")
    alone = report(identical=False, differing=("model",), apart_from=20).problems[0]
    assert alone.fix.startswith("seed everything")


@pytest.mark.parametrize(
    ("early", "late", "found"),
    [
        (STATE, STATE, None),
        (STATE | {"model": "xx"}, STATE, (20, ("model",))),
        (STATE, STATE | {"model": "xx"}, None),
    ],
)
def test_only_what_the_first_attempt_committed_was_there_before_a_disturbance(early, late, found):
    pair = Pair()
    for run, states in ((pair.undisturbed, (STATE, STATE)), (pair.disturbed, (early, late))):
        run.attempt(StopReason.LOST, commit=20, hit=KILL, state=states[0])
        run.attempt(StopReason.NOTICE, commit=40, verdict=EXACT, state=states[1])
    assert differing_before(pair.undisturbed.book.history, pair.disturbed.book.history) == found


def test_files_that_one_run_leaves_are_known_and_those_of_the_drill_are_not(tmp_path):
    for name in ("old.txt", "data/rows.csv", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    folder = SharedFolder(tmp_path, apart=RunPlace(StoreSpec(url=str(tmp_path / "store")), str(tmp_path / "fast")))
    assert folder.written() == ()
    for name in ("old.txt", "out/weights.pt", "store/log", "fast/shard", ".git/index"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("afterwards")
    assert folder.written() == ("old.txt", "out/weights.pt")
    assert SharedFolder(None, apart=RunPlace(StoreSpec(url=str(tmp_path / "store")), None)).written() == ()


def test_what_is_new_in_a_folder_is_hidden_and_comes_back(tmp_path):
    def write(text: str, *names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    def files() -> dict[str, str]:
        found = (path for path in tmp_path.rglob("*") if path.is_file() and "store" not in path.parts)
        return {str(path.relative_to(tmp_path)): path.read_text() for path in found}

    before = {"old.txt": "before", "out/rows.csv": "before", ".git/HEAD": "before"}
    for name, text in before.items():
        write(text, name)
    with SharedFolder(
        tmp_path, apart=RunPlace(StoreSpec(url=str(tmp_path / "out" / "store")), None)
    ).hiding() as hidden:
        write("first", "out/best.pt", "runs/1/.mark", "runs/1/log", "runs/1/deep/log", "out/store/shard", "old.txt")
        hidden.hide()
        assert hidden.names == ("out/best.pt", "runs")
        seen = {name: text for name, text in files().items() if not name.startswith(".segue")}
        assert seen == before | {"old.txt": "first"}, "what was there before may be read by the script"
        assert (tmp_path / "out" / "store" / "shard").exists()
        write("second", "out/best.pt", "runs/1/log")
        hidden.hide()
        write("third", "runs/1/log")
    new = {"out/best.pt": "second", "runs/1/log": "third", "runs/1/.mark": "first", "runs/1/deep/log": "first"}
    assert files() == before | {"old.txt": "first"} | new
    assert not (tmp_path / ".segue").exists()


def test_a_folder_with_too_many_files_to_know_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("segue.verification.shared_folder._MOST_KNOWN", 3)
    for number in range(3):
        (tmp_path / f"{number}.txt").touch()
    with SharedFolder(tmp_path, apart=RunPlace(StoreSpec(url=str(tmp_path / "store")), None)).hiding() as hidden:
        (tmp_path / "new.txt").touch()
        hidden.hide()
        assert (tmp_path / "new.txt").exists()
        assert hidden.names == ()


def test_what_a_resume_elsewhere_did_not_find_is_named():
    made = report(identical=False, differing=("model",), hidden=("out/best.pt", "runs"))
    problem = made.problems[-1]
    assert problem.sentence.endswith("which does not have these files of the script: out/best.pt and runs")
    assert report(hidden=("out/best.pt",)).problems == ()


def saved(state) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


SAVED = {
    "callbacks": {"ModelCheckpoint": {"dirpath": "/logs/version_0", "score": torch.tensor(1.0)}},
    "epoch": 3,
    "state_dict": {"net.weight": torch.ones(3), "net.bias": torch.zeros(2)},
}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"a": b"1"}, {"a": b"1", "b": b"2"}, ("only one of the runs has b",)),
        ({"a.bin": b"\xff1"}, {"a.bin": b"\xff2"}, ("a.bin has other bytes",)),
        (
            {"state.json": json.dumps({"log": [{"loss": 1.0}]}).encode()},
            {"state.json": json.dumps({"log": [{"loss": 2.0}]}).encode()},
            ("state.json: log.0.loss was 1.0, now 2.0",),
        ),
        (
            {"x.ckpt": saved(SAVED)},
            {"x.ckpt": saved({**SAVED, "callbacks": {"ModelCheckpoint": {"dirpath": "/logs/version_1"}}})},
            ("x.ckpt: dirpath was '/logs/version_0', now '/logs/version_1'",),
        ),
        ({"x.ckpt": saved(SAVED)}, {"x.ckpt": saved({**SAVED, "epoch": 4})}, ("x.ckpt: epoch was 3, now 4",)),
        (
            {"x.ckpt": saved(SAVED)},
            {"x.ckpt": saved({**SAVED, "state_dict": {"net.weight": torch.ones(3), "net.bias": torch.ones(2)}})},
            ("x.ckpt: the values of net.bias",),
        ),
    ],
)
def test_a_folder_that_differs_is_named_by_file_and_entry(one, other, said):
    assert folder_differences(one, one) == ()
    found = folder_differences(one, other)
    assert [text.startswith(begin) for text, begin in zip(found, said, strict=True)] == [True] * len(said)


def test_a_drill_names_the_entry_of_a_folder_and_no_state_dict():
    made = report(identical=False, differing=("folder",), of_folder=("lightning.ckpt: dirpath was 'a', now 'b'",))
    (problem,) = made.problems
    assert problem.sentence.endswith("undisturbed run: lightning.ckpt: dirpath was 'a', now 'b'")
    assert "run.commit_folder(path, instead=...)" in problem.fix
