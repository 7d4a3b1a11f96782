"""The event of a verification, for automations. The module is pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from segue.reports.run_events import RunEvent
from segue.verification.verification_page import headline
from segue.verification.verification_record import Verification

VERIFY_PASSED = "segue.verify.passed"
VERIFY_FAILED = "segue.verify.failed"


def event_of(history: Sequence[Verification], *, store: str, now: datetime) -> RunEvent:
    """The event of the newest verification in `history`."""
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
