"""Makes the page of a run's verifications, and the event of the newest verification. The module is pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from segue.markup import Markup, blocks, bold, bullets, code, inline, table
from segue.reports.run_events import RunEvent
from segue.units import duration, money
from segue.verification.verifications import Verification, green

_SHOWN = 20
VERIFY_PASSED = "segue.verify.passed"
VERIFY_FAILED = "segue.verify.failed"


def headline(history: Sequence[Verification], *, now: datetime) -> str:
    """Return one line with the newest outcome. The line also says since when all verifications have passed, or which
    one passed last."""
    newest = history[-1]
    streak = green(history, now=now)
    if streak is not None:
        return f"{newest.outcome}, {newest.verdict}: {newest.reason}; {streak.in_words}"
    last = next((one for one in reversed(history) if one.is_green), None)
    before = f"the last one that passed was at {last.slot:%Y-%m-%d %H:%M %Z}" if last is not None else "none has passed"
    return f"{newest.outcome}: {newest.reason.rstrip('.')}; {before}"


def verifications_page(history: Sequence[Verification], *, store: str, now: datetime) -> str:
    """Return the page: the newest outcome with its problems and resumes, and a table of the last verifications."""
    newest = history[-1]
    problems: list[str] = [f"{problem.sentence.rstrip('.')}. Fix: {problem.fix}" for problem in newest.problems]
    if not newest.is_green:
        runs = f"{code(newest.undisturbed)} and {code(newest.disturbed)}"
        problems.append(Markup(f"kept as evidence in {inline(store)}: the runs {runs}"))
    shown = blocks(
        Markup(f"{bold(newest.run_id)} {inline(headline(history, now=now))}"),
        bullets(problems),
        f"{newest.workload}, {newest.steps} steps, on {store}",
        bullets(f"resume from step {one.step} after {one.after}: {one.sentence}" for one in newest.resumes),
        table(_COLUMNS, [_row(one) for one in reversed(history[-_SHOWN:])]),
    )
    return f"{shown}\n"


_COLUMNS = ("when", "outcome", "verdict", "identical", "kills", "notices", "preempted by the pool", "time", "cost")


def _row(one: Verification) -> tuple[str, ...]:
    return (
        f"{one.slot:%Y-%m-%d %H:%M %Z}",
        one.outcome.value,
        one.verdict.value,
        "yes" if one.identical else "no",
        str(one.kills),
        str(one.notices),
        str(one.preemptions),
        duration(one.seconds),
        money(one.cost, one.currency),
    )


def event_of(history: Sequence[Verification], *, store: str, now: datetime) -> RunEvent:
    """Return the event of the newest verification in `history`."""
    newest = history[-1]
    first = newest.problems[0] if newest.problems else None
    fix = f". Fix: {first.fix}" if first is not None else ""
    return RunEvent(
        VERIFY_PASSED if newest.is_green else VERIFY_FAILED,
        f"verify:{newest.slot.isoformat()}:{newest.outcome}:{newest.reason}",
        now,
        headline(history, now=now) + fix,
        {
            "run": newest.run_id,
            "store": store,
            "outcome": newest.outcome.value,
            "verdict": newest.verdict.value,
            "component": first.component if first is not None else None,
            "kills": newest.kills,
            "notices": newest.notices,
            "undisturbed": newest.undisturbed,
            "disturbed": newest.disturbed,
        },
    )
