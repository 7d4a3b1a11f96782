"""Tests that make checks of the doctor fail, and the list of the checks that they did so for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from segue.doctor.check import CheckOutcome, Result

DECLARED: set[str] = set()
"""Names of checks that some test makes fail or warn."""
_shown: list[str] = []


def makes_fail(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a test that makes these checks fail. It must show that with `bad`, or it fails itself."""
    DECLARED.update(names)

    def mark(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def marked(*args: Any, **named: Any) -> None:
            _shown.clear()
            test(*args, **named)
            assert _shown, f"none of {names} was shown to fail"
            assert set(_shown) <= set(names), f"{_shown} is not among {names}"

        return marked

    return mark


def bad(name: str, result: Result, outcome: str, *words: str) -> None:
    """The check fails or warns, names what is wrong in one sentence, and what to do."""
    assert result.outcome is CheckOutcome(outcome), result
    assert outcome in ("fail", "warn")
    text = f"{result.reason} {result.fix}"
    assert [word for word in words if word not in text] == [], text
    assert result.fix, result
    assert "\n" not in text
    assert not result.reason.endswith("."), result.reason
    _shown.append(name)


def good(result: Result) -> None:
    """The check passes."""
    assert (result.outcome, result.fix) == (CheckOutcome.OK, ""), result
