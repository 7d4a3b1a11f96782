"""`segue checkpoints import`, as a real process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.cli.test_errors import Outcome, Place
from tests.interop.test_import_refusals import write_code

TINY = "segue.testing.recipes:tiny"


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


def ask(place: Place, *more: str) -> Outcome:
    return place.run("checkpoints", "import", "weights.pt", "--recipe", TINY, "--run", "mine", "--steps", "9", *more)


@pytest.mark.matrix
def test_the_command_imports_once_and_says_how_to_go_on(place, weights):
    shutil.copy(weights, place.folder)
    outcome = ask(place, "--json", "--seed", "3", "--store", "here")
    assert outcome.code == 0, outcome  # On a slow machine, standard error shows the progress.
    told = json.loads(outcome.out)
    assert list(told) == ["run_id", "step", "file", "checkpoint", "prefix", "kept_as_built", "notes"]
    assert (told["run_id"], told["step"], told["file"]["name"]) == ("mine", 0, "weights.pt")
    status = place.run("status", "mine", "--store", "here")
    assert "import of weights.pt (SHA-256 " in status.out
    assert "between segments" in status.out
    again = ask(place, "--store", "here")
    assert (again.code, again.out) == (2, "")
    assert "segue: run mine has already started: its attempt seg000-a1-e1-" in again.err
    assert "committed a checkpoint" in again.err
    place.write("run.toml", 'steps = 5\nrecipe = "x:y"\nseed = 4\n[store]\nurl = "there"\n')
    people = ask(place, "--config", "run.toml")
    assert people.code == 0, people
    assert people.out.startswith("note: built by the recipe ")
    assert "step 0 of mine has the weights of weights.pt, sha256 " in people.out
    assert people.out.endswith(f"\ncontinue with: segue run {TINY} --config=run.toml --run-id=mine --steps=9\n")
    assert (place.folder / "there" / "mine" / "log").is_dir()


@pytest.mark.matrix
def test_code_in_the_file_is_refused_in_one_paragraph_without_a_trace(place, state):
    write_code(place.folder / "weights.pt", state)
    asked = ("checkpoints", "import", "weights.pt", "--recipe", TINY, "--run", "mine", "--steps", "9")
    assert (
        "weights.pt names Python objects, whose code would have to run to read the file: posix.system"
        in place.refused(*asked)
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (["--help"], 0, ""),
        (["checkpoints", "--help"], 0, ""),
        (["checkpoints", "import", "nowhere.pt", "--recipe", TINY, "--run", "r", "--steps", "9"], 2, "cannot be read"),
        (["checkpoints", "import", ".", "--recipe", TINY, "--run", "r", "--steps", "9"], 2, "is a folder"),
        (["checkpoints", "import", "x.pt", "--recipe", TINY, "--steps", "9"], 2, "run_id: required field is missing"),
        (["run", "--run-id", "r", "--steps", "9", "--", "python", "train.py"], 2, "does not answer"),
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(tmp_path, monkeypatch, asked, code, said):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # Nothing listens there.
    (tmp_path / "train.py").touch()
    look = (
        "import sys; from segue.cli import main as cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules, file=sys.stderr)"
    )
    if asked == ["--help"]:
        look = look.replace("cli.main()", "cli.app()")  # The commands that are plugged in have imports of their own.
    done = subprocess.run(
        [sys.executable, "-c", look, *asked], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith(f"{code} False\n")
    assert said in done.stderr
