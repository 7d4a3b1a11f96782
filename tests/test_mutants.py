"""Tests that bite: one line changed in what decides, writes or compares is noticed by the tests nearest to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mutants.catalog import MUTANTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("room", MUTANTS)
def test_every_mutant_is_one_of_the_code_as_it_is_now(room):
    assert [problem for mutant in MUTANTS[room] if (problem := mutant.problem(ROOT))] == []


def test_there_are_enough_of_them_in_every_room():
    counts = {room: len(mutants) for room, mutants in MUTANTS.items()}
    assert sum(counts.values()) >= 80
    assert min(counts.values()) >= 10, counts
    names = [mutant.name for mutants in MUTANTS.values() for mutant in mutants]
    assert len(set(names)) == len(names)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("room", MUTANTS)
def test_the_nearest_tests_notice_every_mutant(room):
    command = [sys.executable, "-m", "tests.support.mutants", room]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
