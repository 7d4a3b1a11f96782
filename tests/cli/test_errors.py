"""The command line, as a real process: one paragraph, the fix, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from segue.testing.clock import FakeClock
from segue.testing.metadata import NO_SERVICE
from tests.controller.test_steps import Run

SEGUE = Path(sys.executable).with_name("segue")
TINY = "segue.testing.recipes:tiny"
MARK = f"test-{uuid.uuid4().hex}"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """An empty folder in which commands are run; everything outside of it that they may touch lies beside it."""

    def __init__(self, beside: Path) -> None:
        self.folder = beside / "work"
        for name in ("work", "home", "tmp"):
            (beside / name).mkdir(parents=True)
        # Of the surroundings only what a process needs: no configured server, no credentials, no colours.
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(beside / "home"),
            "TMPDIR": str(beside / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SEGUE_TEST_MARK": MARK,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            **NO_SERVICE,
        }
        if "PYTHONPATH" in os.environ:  # Which checkout is tested.
            self._environment["PYTHONPATH"] = os.environ["PYTHONPATH"]

    def set(self, name: str, value: str) -> None:
        self._environment[name] = value

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [str(SEGUE), *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, text=True, **pipes)

    def files(self) -> set[str]:
        places = (self.folder, self.folder.parent / "tmp")
        return {str(path) for place in places for path in place.rglob("*")}

    def run(self, *arguments: str) -> Outcome:
        return finish(self.start(*arguments))

    def refused(self, *arguments: str) -> str:
        """What a command says that is refused as it should be."""
        before = self.files()
        said = refusal(self.run(*arguments))
        assert self.files() == before
        return said


def finish(process: subprocess.Popen[str], *, limit_seconds: float = 150) -> Outcome:
    with process:
        out, err = process.communicate(timeout=limit_seconds)
    return Outcome(process.returncode, out, err)


def refusal(outcome: Outcome) -> str:
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("segue: ")
    assert outcome.err.count("\n") == 1, "more than one paragraph"
    assert outcome.err.endswith("\n")
    assert "Traceback" not in outcome.err
    return outcome.err


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    with socket.socket() as held:  # Bound and never listening: nobody else gets it, nobody answers.
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def stored(make_spec, tmp_path) -> Run:
    """A run in a store, with one committed checkpoint and one decision open."""
    run = Run(make_spec(steps=100), FakeClock(datetime(2026, 1, 1, tzinfo=UTC)))
    plan = run.decide()
    run.commit(run.claim(plan), 40)
    return run


@pytest.mark.matrix
def test_the_help_lists_every_command(place):
    outcome = place.run("--help")
    assert (outcome.code, outcome.err) == (0, "")
    listed = {line.split()[1] for line in outcome.out.splitlines() if line.startswith("│ ")}
    assert listed >= {"run", "status", "checkpoints", "drill"}


@pytest.mark.matrix
@pytest.mark.parametrize("command", ["run", "drill"])
def test_what_is_wrong_on_the_command_line_is_told_as_that(place, command):
    told = place.refused(command, "flights.py")
    assert told.startswith("segue: on the command line: recipe: must be package.module:function (got 'flights.py'); ex")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[checkpoints]\nkeep = "three"\n', "checkpoints.keep: input should be a valid integer"),
        ("[checkpoints]\nkep = 3\n", "checkpoints.kep: unknown field; did you mean 'keep'?"),
        ("config = 3\n", "config: must be a table (got 3)"),
        ("deadline = 2026-12-01T06:00:00\n", "must have a time zone (got"),
        (
            "steps 3\n",
            "is not TOML (Expected '=' after a key in a key/value pair (at line 1, column 7)). Fix: correct that",
        ),
    ],
)
def test_a_wrong_run_spec_is_refused_by_the_name_of_the_field(desk, text, said):
    message = desk.refused("drill", TINY, "--config", desk.write("run.toml", text))
    assert message.startswith("segue: run.toml is not valid: ")
    assert said in message


def test_a_run_spec_that_is_not_there_is_refused_by_its_name(desk):
    assert "nowhere.toml is not valid: the file cannot be read" in desk.refused(
        "drill", TINY, "--config", "nowhere.toml"
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("recipe", "text", "said"),
    [
        ("flights.py", "", "recipe: must be package.module:function (got 'flights.py'); example: "),
        ("nowhere:build", "", "there is no module 'nowhere'."),
        ("mine:build", "import a_package_nobody_has", "importing it needs 'a_package_nobody_has', which is not"),
        (
            "mine:build",
            "raise RuntimeError('first line\\nsecond line')",
            "raised RuntimeError: first line second line.",
        ),
        ("mine:build", "def builds(): ...", "module 'mine' has no function 'build'."),
    ],
)
def test_a_recipe_that_cannot_be_imported_is_refused_with_the_reason(place, recipe, text, said):
    place.write("mine.py", text)
    message = place.refused("drill", recipe)
    assert said in message
    is_path = "raised" not in said and "importing" not in said
    assert ("importable from the current folder" in message or "example:" in message) is is_path


def test_an_unknown_run_is_told_with_those_that_are_there(desk, stored):
    store = str(stored.log.store.url)
    message = desk.refused("status", "huge", "--store", store)
    assert message == f"segue: no run 'huge' in {store}. Runs there: tiny. Fix: check the run id and --store.\n"


@pytest.mark.parametrize("run", ["nightly", "../up", ""])
def test_a_store_that_is_not_there_holds_no_runs_and_is_not_made(desk, run):
    assert f"no run {run!r} in " in desk.refused("status", run, "--json")


@pytest.mark.parametrize(
    ("store", "endpoint", "said"),
    [
        ("ftp://host/x", None, "ftp:// is not a supported kind of store. Fix: give a folder, file:///folder, s3://"),
        ("s3://", None, "the URL has no bucket. Fix: write it as s3://bucket/prefix."),
        ("s3://bucket", "127.0.0.1:9", "endpoint_url: must be a URL (got '127.0.0.1:9'); example: http://"),
        ("s3://bucket", "http://127.0.0.1:{port}", "check --store, --endpoint-url, the network and your access."),
    ],
)
def test_a_store_that_cannot_be_reached_is_told_with_the_fix(desk, closed_port, store, endpoint, said):
    given = [] if endpoint is None else ["--endpoint-url", endpoint.format(port=closed_port)]
    assert said in desk.refused("status", "nightly", "--store", store, *given)


def test_status_says_all_of_it_in_one_json_object(desk, stored):
    outcome = desk.run("status", "tiny", "--store", stored.log.store.url, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert (told["run"], told["committed_steps"], told["goal_steps"]) == ("tiny", 40, 100)
    assert (told["state"], told["segment"], told["attempt"], told["pool"]) == ("running", 0, 1, "segment/spot")
    assert told["last_decision"] == "spot: no deadline, so the cheapest capacity"
    assert (told["deadline"], told["segments"], told["damage"]) == (None, [], [])
    assert (told["costs"]["cost"], told["costs"]["paid_share"], told["costs"]["preemptions"]) == (0.0, None, 0)


def test_checkpoints_says_all_of_it_in_one_json_object(desk, stored):
    outcome = desk.run("checkpoints", "tiny", "--store", stored.log.store.url, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert told["run"] == "tiny"
    assert [(row["step"], row["state"], row["parent"]) for row in told["checkpoints"]] == [(40, "kept", None)]


@pytest.mark.matrix
def test_people_get_tables(place, stored):
    status = place.run("status", "tiny", "--store", stored.log.store.url)
    checkpoints = place.run("checkpoints", "tiny", "--store", stored.log.store.url)
    assert (status.code, status.err, checkpoints.code, checkpoints.err) == (0, "", 0, "")
    assert "committed step  40" in status.out
    assert "paid  0.00 USD for 0 s of spot and 0 s of on-demand" in status.out
    assert "kept" in checkpoints.out


def within(set_up: str, *arguments: str) -> tuple[str, str]:
    """How a command ends and which of the two heavy packages it has loaded, in a process set up so; what it says."""
    look = (
        f"import sys; sys.argv = ['segue', *{arguments!r}]; {set_up}\n"
        "from segue.cli import main as cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n"
        "    print('|', end.code, *(name for name in ('prefect', 'torch') if sys.modules.get(name)))"
    )
    run = subprocess.run([sys.executable, "-c", look], text=True, capture_output=True, check=True)
    return run.stdout.rpartition("| ")[2].strip(), run.stderr


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("status", "x", "--store", "/nowhere"), "2"),
        (("run", "flights.py"), "2"),
        (("run", "--help"), "0"),
        (("drill", "--help"), "0"),
        (("--help",), "0"),
    ],
)
def test_what_needs_neither_prefect_nor_torch_does_not_wait_for_them(arguments, end):
    assert within("", *arguments)[0] == end


@pytest.mark.matrix
@pytest.mark.parametrize("arguments", [("worker", "--pool", "spot"), ("run", TINY, "--steps", "5")])
def test_without_prefect_its_commands_name_the_extra(arguments):
    end, said = within("sys.modules['prefect'] = None", *arguments)
    assert end == "2"
    assert f"segue: `segue {arguments[0]}` needs" in " ".join(said.split())
    assert "prefect" in said


@pytest.fixture(scope="module")
def refused_runs(tmp_path_factory, closed_port) -> dict[str, tuple[Outcome, set[str]]]:
    """Every `segue run` that is to be refused, side by side, for each imports Prefect and torch."""
    asked = {
        "deadline": ["--deadline", "2020-01-01T00:00:00Z"],
        "folder": ["--store", "file/store"],
        "bucket": ["--store", "s3://bucket", "--endpoint-url", f"http://127.0.0.1:{closed_port}"],
    }
    started = {}
    for name, options in asked.items():
        place = Place(tmp_path_factory.mktemp(name) / "place")
        place.write("file", "")
        command = ("run", TINY, "--config", place.write("run.toml", "steps = 10\n"), *options)
        started[name] = (place, place.files(), place.start(*command))
    return {name: (finish(process), place.files() - before) for name, (place, before, process) in started.items()}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deadline", "deadline: 2020-01-01T00:00:00+00:00 has passed (it is "),
        ("folder", "the folder cannot be created (Not a directory). Fix: use --store or [store] url to give a folder"),
        (
            "bucket",
            "store s3://bucket: the server does not answer (EndpointConnectionError). Fix: check the endpoint (http://127.0.0.1:",
        ),
    ],
)
def test_a_run_that_cannot_start_is_refused_before_any_server_is(refused_runs, name, said):
    outcome, left = refused_runs[name]
    assert said in refusal(outcome)
    assert left == set()
    assert [process for process in psutil.process_iter(["environ"]) if _is_ours(process)] == []


def _is_ours(process: psutil.Process) -> bool:
    return (process.info["environ"] or {}).get("SEGUE_TEST_MARK") == MARK
