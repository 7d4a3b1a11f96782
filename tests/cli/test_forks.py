"""`segue run --from`: what it accepts, and what it says."""

from __future__ import annotations

import pytest

from segue.cli.run import begin_with, parse_source
from tests.interop.test_fork import source

__all__ = ["source"]

TINY = "segue.testing.recipes:tiny"


def test_a_source_is_a_run_with_or_without_a_step():
    assert parse_source("base") == ("base", None)
    assert parse_source("base@best") == ("base", "best")
    assert parse_source("base@0040") == ("base", 40)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--from", "base@"), "'base@' names no checkpoint of a run"),
        (("--from", "@40"), "'@40' names no checkpoint of a run"),
        (("--from", "base@-1"), "'base@-1' names no checkpoint of a run"),
        (("--from", "base@newest"), "write RUN, RUN@STEP or RUN@best"),
        (("--reset", "optimizer"), "it can only be used together with --from"),
        (("--from", "nobody"), "nobody"),
    ],
)
def test_a_source_that_is_none_is_refused(desk, asked, said):
    outcome = desk.run("run", TINY, "--steps", "5", *asked)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_the_command_says_with_what_a_run_begins(make_spec, source, capsys, monkeypatch):
    monkeypatch.setattr("segue.reports.console.QUIET_SECONDS", 3600.0)  # On a slow machine it would show its progress.
    fork = make_spec(run_id="fork", steps=60, recipe="tests.recipes.forked:with_counter")
    begin_with(fork, ("source", 40), ["optimizer"])
    begin_with(fork, ("source", None), ["optimizer"])
    assert capsys.readouterr().err.splitlines() == [
        "note: the recipe's initial state is used for components that source@40 does not have: extra.counter",
        "run fork begins with source@40, without its optimizer",
        "run fork began with source@40, without its optimizer",
    ]
