"""An attempt that was recalled, as a table: how long it is waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from segue.controller.waiting.recalled import Recalled
from segue.policy.estimates import Situation

TIMEOUT_SECONDS = 20.0
STOPPING, TRAINING = SimpleNamespace(phase="stopping"), SimpleNamespace(phase="training")
IN_TIME, TOO_LATE = 500.0, 100.0


def here(remaining_seconds: float | None) -> Situation:
    return Situation(
        remaining_seconds=remaining_seconds,
        work_seconds=90.0,
        changeover_seconds=30.0,
        at_risk_seconds=10.0,
        detection_seconds=5.0,
        answer_seconds=4.0,
    )


def looked(at_recall: float | None, *, waited_seconds: float, now: float | None, beat, is_urgent: bool = True):
    """What a look finds so long after the recall; the store was read each second in between."""
    recalled, why = Recalled(here(at_recall), timeout_seconds=TIMEOUT_SECONDS), None
    for second in range(int(waited_seconds) + 1):
        is_last = second == int(waited_seconds)
        remaining = now if is_last else at_recall
        why = recalled.why_lost(here(remaining), beat, at=1000.0 + second, is_urgent=is_urgent)
    return why


@pytest.mark.parametrize(
    ("waited_seconds", "beat", "now", "is_urgent", "words"),
    [
        (19, TRAINING, IN_TIME, True, None),
        (21, TRAINING, IN_TIME, True, "no answer to a recall for 20 s"),
        (21, None, IN_TIME, True, "no answer to a recall for 20 s"),
        (21, STOPPING, IN_TIME, True, None),
        (35, STOPPING, IN_TIME, True, "it was recalled and did not end within 34 s"),
        (5, STOPPING, TOO_LATE, True, "did not end in time for on-demand"),
        (5, STOPPING, TOO_LATE, False, None),
        (21, TRAINING, IN_TIME, False, None),
        (35, TRAINING, IN_TIME, False, "it was recalled and did not end within 34 s"),
    ],
)
def test_how_long_a_recalled_attempt_is_waited_for(waited_seconds, beat, now, is_urgent, words):
    why = looked(IN_TIME, waited_seconds=waited_seconds, now=now, beat=beat, is_urgent=is_urgent)
    assert why is None if words is None else words in why


def test_a_recall_that_came_too_late_for_the_deadline_is_no_reason_to_lose_the_work():
    assert looked(TOO_LATE, waited_seconds=5, now=TOO_LATE - 5, beat=STOPPING) is None


def test_a_store_that_was_away_counts_as_half_a_timeout_at_most():
    recalled = Recalled(here(None), timeout_seconds=TIMEOUT_SECONDS)
    assert recalled.why_lost(here(None), TRAINING, at=0.0, is_urgent=True) is None
    assert recalled.why_lost(here(None), TRAINING, at=600.0, is_urgent=True) is None
