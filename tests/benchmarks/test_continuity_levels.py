"""The levels of the continuity benchmark: a script as a program and in a framework's trainer, resumed for real."""

from __future__ import annotations

import pytest

from benchmarks.continuity.axes import WINDOW_STEPS
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.levels.measure import Level, measure, names
from benchmarks.continuity.report import report_of

NAME = "counter in a closure"


@pytest.mark.matrix
def test_a_lost_counter_is_found_named_and_named_at_the_first_commit_at_each_level():
    said = []
    found = measure([NAME], jobs=2, say=said.append)
    assert len(said) == len(Level)
    for level in Level:
        (outcome,) = found[level]
        assert (outcome.is_found, outcome.is_named, outcome.is_named_at_commit) == (True, True, True), (level, outcome)


def test_scripts_without_a_loss_to_hand_over_are_left_out():
    assert NAME in names()
    assert "shadow average only for evaluate" not in names()


def test_levels_are_compared_on_the_same_scripts_that_lose_something_within_the_window():
    recipes = [
        BlindOutcome(name, "unregistered", "broken", is_found=True, is_named=True, acts_after=after)
        for name, after in (("a", 1), ("b", WINDOW_STEPS), ("c", WINDOW_STEPS + 1), ("d", 1))
    ]
    programs = [BlindOutcome(name, "program", "exact", acts_after=1) for name in ("a", "b", "c")]
    kills = {"sigkills": 0}
    report = report_of(
        [], [], recipes, levels={"program": programs}, kills=kills, cost={}, applicable={}, seconds=1.0, jobs=1
    )
    assert [report["levels"][level]["kinds"] for level in ("recipe", "program")] == [2, 2]
    assert [report["levels"][level]["detected_share"] for level in ("recipe", "program")] == [1.0, 0.0]


def test_what_a_level_keeps_is_no_loss_at_that_level():
    recipes = [BlindOutcome(n, "unregistered", "broken", is_found=True, is_named=True, acts_after=1) for n in "ab"]
    kept, lost = BlindOutcome("a", "program", "exact"), BlindOutcome("b", "program", "exact", acts_after=1)
    rest = {"kills": {"sigkills": 0}, "cost": {}, "applicable": {}, "seconds": 1.0, "jobs": 1}
    report = report_of([], [], recipes, levels={"program": [kept, lost]}, **rest)
    found = report["levels"]["program"]
    assert (found["kinds"], found["kept"], found["missed"]) == (1, ["a"], ["b"])
