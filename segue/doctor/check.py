"""Runs checks and collects their results. If a check fails or hangs, the other checks still run."""

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
    """The outcome of a check. If the doctor did not run the check, the outcome is `skipped`, not `ok`."""

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

    name: str = Field(description="Stable name of the check, as PART.PROPERTY, for example pool.workers.")
    outcome: CheckOutcome
    reason: str
    fix: str = Field(description="What to do about the problem; empty for ok and skipped.")


def ok(reason: str) -> Result:
    return Result(CheckOutcome.OK, reason)


def warn(reason: str, *, fix: str) -> Result:
    """Return a warning: the run works, but with a disadvantage."""
    return Result(CheckOutcome.WARN, reason, fix)


def fail(reason: str, *, fix: str) -> Result:
    """Return a failure: the run cannot work, or would lose work or data."""
    return Result(CheckOutcome.FAIL, reason, fix)


def skipped(reason: str) -> Result:
    return Result(CheckOutcome.SKIPPED, reason)


def refused(error: SegueError) -> Result:
    """Return the failed result for an error of segue, with the error's message and fix."""
    fix = error.fix or "see the message."
    return fail(_in_one_line(str(error).removesuffix(f" Fix: {fix}")).removesuffix("."), fix=_in_one_line(fix))


@dataclass(frozen=True)
class Item:
    """A check that the doctor has to run."""

    name: str
    look: Callable[[], Result]
    needs: tuple[str, ...] = ()
    """Names of earlier checks. If one of the earlier checks failed or was skipped, the doctor skips this check."""
    limit_seconds: float | None = DEFAULT_LIMIT_SECONDS
    """Time limit of the check in seconds.

    If the value is None, the check runs in the caller's thread, limits its own time, and ends at Ctrl-C.
    """


def examine(items: Iterable[Item], *, on_begin: Callable[[str], None] | None = None) -> list[Check]:
    """Run the checks one after the other. Call `on_begin` with the name of each check before the check runs.

    A check fails if it raises an exception, or if it exceeds its time limit. After the time limit, the thread of the
    check keeps running.
    """
    results: dict[str, Result] = {}
    for item in items:
        if on_begin is not None:
            on_begin(item.name)
        results[item.name] = _why_skipped(item, results) or _result_of(item)
    return [Check(name=name, **result._asdict()) for name, result in results.items()]


def worst(results: Sequence[Result]) -> Result:
    """Return the worst of several results of one check. It combines the reasons and fixes of all results with this
    outcome."""
    order = (
        CheckOutcome.OK,
        CheckOutcome.SKIPPED,
        CheckOutcome.WARN,
        CheckOutcome.FAIL,
    )  # A skipped check is not ok.
    outcome = max((result.outcome for result in results), key=order.index)
    same = [result for result in results if result.outcome is outcome]
    reasons = dict.fromkeys(result.reason for result in same)
    return Result(outcome, "; ".join(reasons), joined(result.fix for result in same))


def joined(fixes: Iterable[str]) -> str:
    """Join several fixes into one sentence, without repetitions. If there are no fixes, return an empty text."""
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
    # Prefect keeps its settings in the context. A daemon thread cannot keep the command alive if a disk hangs.
    work = threading.Thread(
        target=copy_context().run, args=(_look, item, found), name=f"segue-{item.name}", daemon=True
    )
    work.start()
    work.join(item.limit_seconds)
    if found:
        return found[0]
    reason = f"no answer within {duration(item.limit_seconds)}"
    return fail(reason, fix="look at the disk, the network or the service that this check uses. One of them may hang.")


def _look(item: Item, found: list[Result]) -> None:
    try:
        found.append(item.look())
    except SegueError as error:
        found.append(refused(error))
    except Exception as error:
        # Any exception, because a check that fails must not stop the other checks.
        reason = f"the check could not be made: {type(error).__name__}: {_in_one_line(str(error))}"
        found.append(
            fail(
                reason,
                fix="correct the cause in this message; if the message is not clear, report it as a fault of segue.",
            )
        )


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
