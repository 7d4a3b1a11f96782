"""`segue doctor`: the report, the exit codes, and that every check has a test that makes it fail."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from segue.doctor.registry import OF_SERVER, all_items, without_server
from segue.doctor.subject import Subject
from tests.doctor.showing import DECLARED
from tests.doctor.waiting import awaited

TESTS = Path(__file__).parents[1]
SPEC = 'run_id = "tiny"\nsteps = 40\ngrace_seconds = 20\n'


def names():
    return [item.name for item in all_items(Subject(), without_server("none"))]


def test_every_check_has_a_test_that_makes_it_fail():
    marked = [path for path in TESTS.rglob("test_*.py") if "@makes_fail(" in path.read_text()]
    for path in marked:
        importlib.import_module(".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)))
    assert set(names()) - DECLARED == set()
    assert DECLARED - set(names()) == set()


def test_the_checks_of_the_server_are_those_that_are_skipped_without_one():
    from segue.prefect.doctor import items

    assert [item.name for item in items(Subject())] == list(OF_SERVER)


def test_names_are_unique_and_say_the_part_that_was_looked_at():
    assert len(set(names())) == len(names()) >= 20
    assert {name.partition(".")[0] for name in names()} == {
        "spec",
        "prefect",
        "pool",
        "store",
        "recipe",
        "notices",
        "machine",
        "slurm",
        "ray",
    }


def test_the_page_has_a_row_for_every_check():
    page = (TESTS.parent / "docs" / "doctor.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall("`([^`]+)`", row)} == set(names())


@pytest.fixture
def alone(desk, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return desk


@pytest.mark.matrix
def test_without_a_run_spec_the_machine_is_examined_and_nothing_is_written(alone):
    said = alone.told("doctor")
    outcomes = {check["name"]: check["outcome"] for check in said["checks"]}
    assert list(outcomes) == names()
    assert outcomes["machine.torch"] == "ok"
    assert outcomes["prefect.server"] == outcomes["store.write"] == outcomes["recipe.rehearsal"] == "skipped"
    assert alone.files() == set()


@pytest.mark.matrix
def test_a_check_that_fails_sets_the_exit_code_and_says_what_to_do(alone):
    alone.write("run.toml", SPEC + 'device = "cuda"\n[store]\nurl = "store"\n[liveness]\nnotice_file = "none/notice"\n')
    outcome = alone.run("doctor", "run.toml", "--json")
    assert outcome.code == 1
    said = json.loads(outcome.out)
    assert said["failed"] is True
    failed = {check["name"]: check for check in said["checks"] if check["outcome"] == "fail"}
    assert "notices.file" in failed
    assert all(check["reason"] and check["fix"] for check in failed.values())
    assert set(said["checks"][0]) == {"name", "outcome", "reason", "fix"}
    skipped = {check["name"]: check["reason"] for check in said["checks"] if check["outcome"] == "skipped"}
    assert "the run spec names no recipe" in skipped["recipe.rehearsal"]


@pytest.mark.matrix
def test_a_run_spec_that_is_not_valid_is_one_check_that_fails(alone):
    alone.write("run.toml", "steps = 'many'\n")
    outcome = alone.run("doctor", "run.toml")
    assert outcome.code == 1
    shown = " ".join(outcome.out.split())
    assert "fail spec.valid" in shown
    assert "Fix: correct these fields." in shown
    assert "0 warn, 1 fail" in shown
    assert not (alone.folder / ".segue").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("broken", ["variable", "profiles"])
def test_settings_of_prefect_that_cannot_be_read_are_one_check_that_fails(tmp_path, broken):
    (tmp_path / "profiles.toml").write_text("active = \n" if broken == "profiles" else "")
    given = {"PREFECT_HOME": str(tmp_path), "PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")}
    given |= {"PREFECT_CLIENT_MAX_RETRIES": "hush-hush"} if broken == "variable" else {}
    command = [Path(sys.executable).with_name("segue"), "doctor", "--json"]
    said = subprocess.run(
        command, cwd=tmp_path, env=os.environ | given, capture_output=True, text=True, timeout=300, check=False
    )
    assert (said.returncode, "Traceback" in said.stderr) == (1, False), said.stderr
    checks = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    assert "Prefect's settings cannot be read" in checks["prefect.server"]["reason"]
    assert "hush-hush" not in said.stdout, "a variable may hold a credential"
    assert checks["pool.queue"]["outcome"] == "skipped"
    assert checks["machine.torch"]["outcome"] == "ok"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)]
)
def test_a_doctor_that_is_interrupted_leaves_neither_a_trainer_nor_its_checkpoints(tmp_path, number, code):
    recipe = 'recipe = "segue.testing.recipes:tiny"\nconfig = {pause_seconds = 600}\n'
    (tmp_path / "run.toml").write_text(SPEC + recipe + '[store]\nurl = "store"\n')
    command = [Path(sys.executable).with_name("segue"), "doctor", "run.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            trainer = awaited(lambda: child_of(process.pid, "segue.trainer.main"))
            awaited(lambda: list((tmp_path / "store").glob(".segue-doctor-*/rehearsal/attempts")))
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
    assert not trainer.is_running()
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".segue-store"]


def child_of(pid, module):
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if module in child.cmdline():
                return child
    return None


@pytest.mark.matrix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_doctor_that_is_interrupted_while_a_recipe_is_imported_leaves_no_child(tmp_path, number, code):
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "run.toml").write_text(SPEC + 'recipe = "hanging:build"\n[store]\nurl = "store"\n')
    command = [Path(sys.executable).with_name("segue"), "doctor", "run.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            child = awaited(lambda: child_of(process.pid, "segue.doctor.probe"))
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
    assert not child.is_running()
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".segue-store"]
