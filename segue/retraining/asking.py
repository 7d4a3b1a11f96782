"""Handles candidates that are promoted only after the approval of a person. The module is pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from segue.retraining.history import Models
from segue.retraining.model_record import Candidate
from segue.retraining.spec import RetrainSpec

USUAL_HOURS = 72.0


def asked(candidate: Candidate, spec: RetrainSpec, models: Models, *, now: datetime) -> Candidate:
    """Return the candidate to record after an evaluation.

    With `promotion = "ask"`, a better candidate waits for a person. A candidate that is not better is not promoted, and
    no person is asked. If a candidate of a later slot already waits, no person is asked either. The reason is that a
    candidate never replaces a version that was trained for a later slot.
    """
    if spec.promotion != "ask" or not candidate.is_promoted:
        return candidate
    later = [number for number, state in models.waiting.items() if state.slot > candidate.slot]
    if later:
        why = f"version {later[0]}, trained for a later slot, waits for a decision"
        return candidate.model_copy(update={"is_promoted": False, "why": why})
    hours = spec.decide_within_hours if spec.decide_within_hours is not None else USUAL_HOURS
    decide_by = now + timedelta(hours=hours)
    return candidate.model_copy(update={"is_promoted": False, "decide_by": decide_by})
