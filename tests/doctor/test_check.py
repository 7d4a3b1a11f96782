"""A list of checks comes to its end whatever one of them does."""

from __future__ import annotations

import threading

import pytest

from segue.cli.doctor import facts, has_failed, summary
from segue.doctor.check import Item, examine, fail, ok, skipped, warn, worst
from segue.errors import StoreUnreachableError


def raises(error):
    def look():
        raise error

    return look


def test_what_a_check_raises_is_its_failure_and_not_the_end_of_the_others():
    refusal = StoreUnreachableError(url="s3://b", why="no answer.", fix="check the endpoint.")
    items = [
        Item("a", raises(ZeroDivisionError("by\nzero"))),
        Item("b", raises(refusal)),
        Item("c", lambda: ok("fine")),
    ]
    a, b, c = examine(items)
    assert (a.outcome, b.outcome, c.outcome) == ("fail", "fail", "ok")
    assert a.reason == "the check could not be made: ZeroDivisionError: by zero"
    assert "no answer" in b.reason
    assert "Fix" not in b.reason
    assert b.fix == "check the endpoint."
    assert (c.reason, c.fix) == ("fine", "")


def test_a_check_that_hangs_has_failed_at_its_limit():
    released = threading.Event()

    def hangs():
        released.wait(60)
        return ok("")

    first, second = examine([Item("a", hangs, limit_seconds=0.05), Item("b", lambda: ok("fine"))])
    released.set()
    assert (first.outcome, first.reason, second.outcome) == ("fail", "no answer within 0.05 s", "ok")


@pytest.mark.parametrize(
    ("needed", "outcome", "reason"),
    [
        (ok("x"), "ok", "looked"),
        (warn("x", fix="y"), "ok", "looked"),
        (fail("x", fix="y"), "skipped", "a failed"),
        (skipped("there is none"), "skipped", "there is none"),
    ],
)
def test_a_check_is_made_only_where_what_it_needs_has_passed(needed, outcome, reason):
    _, second = examine([Item("a", lambda: needed), Item("b", lambda: ok("looked"), ("a",))])
    assert (second.outcome, second.reason) == (outcome, reason)


def test_the_worst_of_several_results_is_shown_with_its_reasons_and_fixes():
    results = [ok("a"), warn("b", fix="do 1."), warn("c", fix="do 2."), warn("b", fix="do 1."), skipped("d")]
    assert worst(results) == warn("b; c", fix="do 1; do 2.")
    assert worst([skipped("d"), ok("a")]) == skipped("d")
    assert worst([skipped("d"), skipped("d")]) == skipped("d")


def test_skipped_is_not_counted_as_ok():
    checks = examine([Item("a", lambda: skipped("no spec")), Item("b", lambda: warn("slow", fix="wait."))])
    assert summary(checks) == "0 ok, 1 warn, 0 fail, 1 skipped"
    assert not has_failed(checks)
    assert facts(checks)["checks"][1] == {"name": "b", "outcome": "warn", "reason": "slow", "fix": "wait."}
