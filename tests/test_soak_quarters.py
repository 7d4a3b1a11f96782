"""No soak test is left out: each file is in one quarter, the quarters take as long, and four landings run them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.soak.__main__ import alone, run
from tests.support.soak.plugin import TOO_LATE, rotated
from tests.support.soak.quarters import NUMBER, QUARTERS, chosen, lightest, quarter_of
from tests.support.soak.summary import Summary

ROOT = Path(__file__).parents[1]
MOST_SECONDS = 28 * 60
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


def test_a_quarter_begins_with_other_files_at_each_turn():
    files = [Path(str(number)) for number in range(17)]
    first = {rotated(files, turn)[0] for turn in range(17)}
    assert first == set(files)
    assert sorted(rotated(files, 5)) == sorted(files)
    assert rotated([], 3) == []


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


MINE, OTHER = (next(iter(files)) for files in QUARTERS[:2])


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with a file of the first quarter, one of the second, and one of none."""
    for file, text in ((MINE, SOME), (OTHER, OTHERS), ("tests/test_new.py", SOME)):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("SEGUE_SOAK_UNTIL", raising=False)  # The time by which CI wants its own to have begun.
    return tmp_path


@pytest.mark.matrix
def test_a_quarter_runs_its_files_and_those_of_none_and_knows_how_each_test_ended(project):
    assert quarter_of("tests/test_new.py") is None
    code, found = run(0, project)
    assert code == 1
    assert {test.partition("::")[0] for test in found} == {MINE, "tests/test_new.py"}
    assert {test.partition("::")[2]: how for test, how in found.items() if test.startswith(MINE)} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "no cluster here",
        "test_cannot_begin": "failed",
    }
    assert [alone(f"{MINE}::{name}", project) for name in ("test_passes", "test_fails")] == [True, False]


@pytest.mark.matrix
def test_no_test_is_begun_when_the_time_of_the_quarter_is_over(project, monkeypatch):
    monkeypatch.setattr("tests.support.soak.__main__.MOST_SECONDS", -1)
    code, found = run(0, project)
    assert (code, set(found.values())) == (0, {TOO_LATE})
