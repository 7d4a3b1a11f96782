"""No soak test is left out: each file is in one quarter, the quarters take as long, and four landings run them all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.soak.plugin import TOO_LATE
from tests.support.soak.quarters import NUMBER, QUARTERS, chosen, lightest, quarter_of
from tests.support.soak.summary import Summary

ROOT = Path(__file__).parents[1]
MOST_SECONDS = 25 * 60
"""Of a quarter, one test after the other. Two run at a time: all four take less than an hour and a half."""
MARK = re.compile(r"\bmark\.soak\b")


def files_with_soak_tests() -> set[str]:
    files = (path for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__))
    return {path.relative_to(ROOT).as_posix() for path in files if MARK.search(path.read_text())}


def test_each_file_with_a_soak_test_is_in_one_quarter():
    listed = [file for files in QUARTERS for file in files]
    assert len(listed) == len(set(listed))
    missing, gone = files_with_soak_tests() - set(listed), set(listed) - files_with_soak_tests()
    fix = f"add it with its seconds to quarter {lightest() + 1} in tests/support/soak/quarters.py"
    assert not missing, f"in no quarter: {missing}. Fix: {fix}"
    assert not gone, f"without a soak test: {gone}. Fix: remove it from tests/support/soak/quarters.py"


def test_the_quarters_take_as_long_as_each_other_and_no_longer_than_ci_has():
    seconds = [sum(files.values()) for files in QUARTERS]
    assert max(seconds) < 1.15 * min(seconds), seconds
    assert max(seconds) < MOST_SECONDS


@pytest.mark.parametrize("first", [0, 587])
def test_four_landings_of_one_commit_each_run_all(first):
    assert {chosen(first + landing) for landing in range(4)} == set(range(NUMBER))


def test_a_failure_counts_only_if_it_fails_alone_too_and_a_skipped_test_did_not_run():
    asked = []

    def passes_alone(test: str) -> bool:
        asked.append(test)
        return test == "b"

    outcomes = {"a": "passed", "b": "failed", "c": "failed", "d": "no Slurm here", "e": TOO_LATE, "f": "no Slurm here"}
    found = Summary.of(outcomes, passes_alone=passes_alone)
    assert (asked, found.passed, found.passed_alone, found.failed) == (["b", "c"], ("a",), ("b",), ("c",))
    assert found.not_run == {"no Slurm here": ("d", "f"), TOO_LATE: ("e",)}
    assert found.exit_code == 1
    lines = found.lines(1)
    assert lines[0] == "soak tests, quarter 2 of 4: 1 passed, 1 passed only alone, 1 failed, 3 not run"
    assert "  failed twice: c" in lines
    assert f"  not run ({TOO_LATE}): e" in lines
    assert Summary.of({"a": "passed", "b": "failed"}, passes_alone=passes_alone).exit_code == 0


SOME = """
import pytest
pytestmark = pytest.mark.soak
def test_passes(): pass
def test_fails(): assert False
def test_is_skipped(): pytest.skip("no cluster here")
@pytest.fixture
def broken(): raise ValueError
def test_cannot_begin(broken): pass
"""
OTHERS = """
import pytest
def test_is_none(): assert False
@pytest.mark.soak
def test_of_another_quarter(): assert False
"""


def outcomes_in(folder: Path, *options: str) -> dict[str, str]:
    """How the tests of the first quarter ended, in a folder with a file of it and one of the second."""
    (mine, *_), (other, *_) = ([*files] for files in QUARTERS[:2])
    for file, text in ((mine, SOME), (other, OTHERS), ("tests/test_new.py", SOME)):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.soak.plugin"]
    command += ["--import-mode", "importlib", "-m", "soak", "--quarter", "0", "--outcomes", "outcomes.json", *options]
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "tests"], cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads((folder / "outcomes.json").read_text())
    assert {test.partition("::")[0] for test in found} == {mine, "tests/test_new.py"}
    return {test.partition("::")[2]: outcome for test, outcome in found.items() if test.startswith(mine)}


@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two"])
def test_the_plugin_runs_the_files_of_its_quarter_and_those_of_none(tmp_path, processes):
    assert quarter_of("tests/test_new.py") is None
    assert outcomes_in(tmp_path, *processes) == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "no cluster here",
        "test_cannot_begin": "failed",
    }


def test_no_test_is_begun_when_the_time_of_the_quarter_is_over(tmp_path):
    assert set(outcomes_in(tmp_path, "--begin-until", "1").values()) == {TOO_LATE}
