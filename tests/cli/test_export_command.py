"""`segue checkpoints`, as a real process: it lists as it always did, and exports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from segue.checkpoints.loading.quarantine import quarantine
from tests.cli.test_errors import Place, refusal
from tests.support.trained_run import Trained, flip_a_bit, names_in, read_run, train


@pytest.fixture(scope="module")
def trained(fork_server, tmp_path_factory) -> Trained:
    return train(fork_server, tmp_path_factory.mktemp("trained") / "store")


@pytest.fixture
def copied(trained, tmp_path) -> Trained:
    """The same run in a store that the test may damage."""
    return read_run(Path(shutil.copytree(trained.store, tmp_path / "store")))


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


@pytest.mark.matrix
def test_the_command_says_all_of_it_in_one_flat_json_object(trained, desk):
    where = ("--store", str(trained.store))
    outcome = desk.run("checkpoints", "export", "tiny", "--format", "torch", "--to", "a/b", "--json", *where)
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert (told["run_id"], told["step"], told["format"]) == ("tiny", 40, "torch")
    assert told["folder"] == str(desk.folder / "a" / "b")
    assert list(told) == ["run_id", "step", "format", "folder", "files"]
    sizes = {path.name: path.stat().st_size for path in (desk.folder / "a" / "b").iterdir()}
    assert {file["name"]: file["size_bytes"] for file in told["files"]} == sizes


@pytest.mark.matrix
def test_people_get_a_table_of_the_files(trained, place):
    where = ("--store", str(trained.store), "--step", "30", "--quarantined")
    outcome = place.run("checkpoints", "export", "tiny", "--format", "safetensors", "--to", "out", *where)
    assert outcome.code == 0, outcome  # On a slow machine, standard error shows the progress.
    assert "model.safetensors" in outcome.out
    assert outcome.out.endswith(f"\nstep 30 of tiny is in {place.folder / 'out'}; README.md describes the files\n")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("tiny", "--step", "35"), "has no checkpoint of step 35. Fix: choose one of the steps 10, 20, 40."),
        (("tiny", "--step", "30"), "is quarantined: a person doubted it."),
        (("tiny", "--to", "."), "Fix: name an empty or a new folder."),
        (("teeny",), "no run 'teeny' in"),
        (("tiny", "--best", "--step", "10"), "--best: it cannot be used together with --step; give one of them"),
    ],
)
def test_what_cannot_be_done_as_asked_is_refused_without_a_trace(trained, desk, asked, said):
    desk.write("mine.txt", "mine")
    more = ("--format", "torch", "--to", "out", "--store", str(trained.store))
    assert said in desk.refused("checkpoints", "export", *more, *asked)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "file_format", ["dcp", *(pytest.param(name, marks=pytest.mark.soak) for name in ("torch", "safetensors"))]
)
def test_a_full_disk_is_refused_in_one_paragraph_and_leaves_nothing(trained, tmp_path, file_format):
    # No file may be larger than 12 KiB: the curve and the JSON fit, the optimizer does not.
    script = 'ulimit -f 12; exec "$@"'
    segue_command = Path(sys.executable).with_name("segue")
    asked = ["checkpoints", "export", "tiny", "--format", file_format, "--to", "out", "--store", str(trained.store)]
    command = ["bash", "-c", script, "bash", str(segue_command), *asked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    *progress, said = done.stderr.splitlines()  # On a slow machine, lines of progress come first.
    assert not [line for line in progress if line.startswith("segue: ")]
    assert said.startswith("segue: ")
    assert "cannot be written (" in said
    assert "File too large" in said
    assert names_in(tmp_path) == set()


def test_a_damaged_checkpoint_ends_the_command_with_1(copied, desk):
    (shard,) = copied.store.glob("tiny/attempts/*/step-000000040/*.safetensors")
    flip_a_bit(shard)
    before = desk.files()
    more = ("--format", "torch", "--to", "out", "--store", str(copied.store))
    outcome = desk.run("checkpoints", "export", "tiny", *more)
    assert (outcome.code, outcome.out) == (1, "")
    # Lines of the log may come before it: a test that loads Prefect also sets up logging.
    assert "segue: the checkpoint of step 40 is damaged: " in outcome.err
    assert "set aside" not in outcome.err
    assert desk.files() == before
    refusal(desk.run("checkpoints", "export", "tiny", *more, "--step", "30"))


@pytest.mark.parametrize("order", ["run first", "options first", "the word itself", "after two dashes"])
def test_the_first_word_that_is_no_command_is_the_run_to_list(trained, desk, order):
    where = ["--store", str(trained.store), "--json"]
    asked = {
        "run first": ["tiny", *where],
        "options first": [*where, "tiny"],
        "the word itself": ["list", "tiny", *where],
        "after two dashes": [*where, "--", "tiny"],
    }[order]
    outcome = desk.run("checkpoints", *asked)
    assert (outcome.code, outcome.err) == (0, "")
    assert [row["step"] for row in json.loads(outcome.out)["checkpoints"]] == [10, 20, 30, 40]


def test_the_help_of_the_group_explains_both(desk):
    outcome = desk.run("checkpoints", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "segue checkpoints RUN" in outcome.out
    assert {"list", "export"} <= set(outcome.out.split())
    assert "--to" in desk.run("checkpoints", "export", "--help").out
    assert "--store" in desk.run("checkpoints", "tiny", "--help").out


@pytest.mark.matrix
def test_listing_and_refusing_wait_for_neither_torch_nor_prefect(trained):
    look = (
        "import sys; from segue.cli import main as cli; heavy = {'torch', 'prefect', 'pandas', 'pyarrow'}\n"
        "try:\n    cli.main()\n"
        "except SystemExit as end:\n    print(end.code, heavy & set(sys.modules), file=sys.stderr)"
    )
    where = ["--store", str(trained.store)]
    for code, asked in ((0, ["tiny"]), (2, ["export", "tiny", "--format", "torch", "--to", "x", "--step", "35"])):
        command = [sys.executable, "-c", look, "checkpoints", *asked, *where]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert said.endswith(f"{code} set()\n")


def test_a_quarantine_is_lifted_when_the_bytes_verify_and_only_then(copied, desk):
    newest = copied.history.checkpoints[-1]
    quarantine(copied.log, checkpoint=newest, reason="a doubt", epoch=0)
    asked = ("checkpoints", "lift-quarantine", "tiny", "--store", str(copied.store), "--step")
    shard = copied.store / "tiny" / next(s.key for s in newest.manifest.shards if s.key.endswith(".safetensors"))
    sound = shard.read_bytes()
    flip_a_bit(shard)
    damaged = desk.run(*asked, "40")
    assert (damaged.code, "is damaged" in damaged.err) == (1, True)
    shard.write_bytes(sound)  # As the fix says.
    curve = next((copied.store / "tiny/metrics").glob(f"{newest.ref.attempt_id}*.parquet"))
    curve.unlink()
    lifted = desk.run(*asked, "40")
    said = "step 40 of tiny is no longer quarantined; the reason was: a doubt"
    about_curve = f"loss curve damaged: tiny/metrics/{curve.name} is missing from the store"
    assert (lifted.code, lifted.out.splitlines()) == (0, [about_curve, said])
    assert read_run(copied.store).history.newest.manifest.step == 40
    again = desk.run(*asked, "40")
    assert (again.code, "no quarantined checkpoint of step 40" in again.err) == (2, True)


def test_a_record_that_can_be_read_is_not_given_up(copied, desk):
    asked = ("checkpoints", "give-up-record", "tiny", "--store", str(copied.store), "--record", "1")
    refused = desk.run(*asked)
    assert (refused.code, "Fix: none needed: every record can be read" in refused.err) == (2, True)
    (copied.store / "tiny/log/00000001.json").write_bytes(b"garbage")
    done = desk.run(*asked)
    assert (done.code, done.out.strip()) == (0, "record 1 of tiny is given up (its checksum does not match its bytes)")
    assert desk.run(*asked).code == 2
