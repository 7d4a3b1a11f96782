"""Checks: their results, and how to make a list of checks so that one that fails or hangs does not end the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from segue.errors import SegueError
from segue.records import Value
from segue.units import duration

DEFAULT_LIMIT_SECONDS = 60.0


class CheckOutcome(StrEnum):
    """The outcome of a check. `skipped` is not `ok`: nothing was looked at."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Result(NamedTuple):
    """The result of a check."""

    outcome: CheckOutcome
    reason: str
    fix: str = ""


class Check(Value):
    """One line of the doctor's report."""

    name: str = Field(description="Stable name: the part that was looked at, a dot, and what about it.")
    outcome: CheckOutcome
    reason: str
    fix: str = Field(description="What to do about it; empty for ok and skipped.")


def ok(reason: str) -> Result:
    return Result(CheckOutcome.OK, reason)


def warn(reason: str, *, fix: str) -> Result:
    """The result if a run can work, but worse than it could."""
    return Result(CheckOutcome.WARN, reason, fix)


def fail(reason: str, *, fix: str) -> Result:
    """The result if a run cannot work, or loses what it should not lose."""
    return Result(CheckOutcome.FAIL, reason, fix)


def skipped(reason: str) -> Result:
    return Result(CheckOutcome.SKIPPED, reason)


def refused(error: SegueError) -> Result:
    """The failure that an error of segue describes."""
    fix = error.fix or "see the message."
    return fail(_in_one_line(str(error).removesuffix(f" Fix: {fix}")).removesuffix("."), fix=_in_one_line(fix))


@dataclass(frozen=True)
class Item:
    """A check to make."""

    name: str
    look: Callable[[], Result]
    needs: tuple[str, ...] = ()
    """Names of checks before it that must have passed, or it is skipped."""
    limit_seconds: float | None = DEFAULT_LIMIT_SECONDS
    """None: it limits itself, and is made in the caller's thread, where Ctrl-C ends it with what it has started."""


def examine(items: Iterable[Item], *, on_begin: Callable[[str], None] | None = None) -> list[Check]:
    """Make the checks, one after the other, in their order. `on_begin` is called with the name of each.

    A check that raises an exception has failed, and so has one that exceeds its limit: its thread is left behind.
    """
    results: dict[str, Result] = {}
    for item in items:
        if on_begin is not None:
            on_begin(item.name)
        results[item.name] = _why_skipped(item, results) or _result_of(item)
    return [Check(name=name, **result._asdict()) for name, result in results.items()]


def worst(results: Sequence[Result]) -> Result:
    """The worst of several results about one thing, with the reasons and the fixes of all that are equally bad."""
    order = (
        CheckOutcome.OK,
        CheckOutcome.SKIPPED,
        CheckOutcome.WARN,
        CheckOutcome.FAIL,
    )  # What was not looked at is not ok.
    outcome = max((result.outcome for result in results), key=order.index)
    same = [result for result in results if result.outcome is outcome]
    reasons = dict.fromkeys(result.reason for result in same)
    return Result(outcome, "; ".join(reasons), joined(result.fix for result in same))


def joined(fixes: Iterable[str]) -> str:
    """Several fixes as one sentence, each once; empty without any."""
    each = dict.fromkeys(fix.removesuffix(".") for fix in fixes if fix)
    return f"{'; '.join(each)}." if each else ""


def _why_skipped(item: Item, results: dict[str, Result]) -> Result | None:
    for name in item.needs:
        needed = results[name]
        if needed.outcome is CheckOutcome.SKIPPED:
            return needed
        if needed.outcome is CheckOutcome.FAIL:
            return skipped(f"{name} failed")
    return None


def _result_of(item: Item) -> Result:
    found: list[Result] = []
    if item.limit_seconds is None:
        _look(item, found)
        return found[0]
    # A copy of the context: Prefect keeps its settings there. A daemon: a disk that hangs must not keep the command up.
    work = threading.Thread(
        target=copy_context().run, args=(_look, item, found), name=f"segue-{item.name}", daemon=True
    )
    work.start()
    work.join(item.limit_seconds)
    if found:
        return found[0]
    reason = f"no answer within {duration(item.limit_seconds)}"
    return fail(reason, fix="check the disk, the network or the service that this check uses: it may hang.")


def _look(item: Item, found: list[Result]) -> None:
    try:
        found.append(item.look())
    except SegueError as error:
        found.append(refused(error))
    except Exception as error:
        # Any exception: one check that fails must not end the others.
        reason = f"the check could not be made: {type(error).__name__}: {_in_one_line(str(error))}"
        found.append(fail(reason, fix="correct what it says; if it is not clear, report it as a fault of segue."))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
