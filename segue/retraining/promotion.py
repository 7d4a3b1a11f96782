"""Decides whether a candidate replaces the model in service: by its gain (`min_gain`), the guards and the groups.

If a person must approve promotions, a better candidate waits for this person. The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from segue.retraining.history import Models
from segue.retraining.model_record import Candidate, Comparison, Interval, LeftOut
from segue.retraining.promotion_spec import EvaluationSpec
from segue.retraining.spec import RetrainSpec

USUAL_HOURS = 72.0


class Promotion(NamedTuple):
    """Whether a candidate replaces the model in service, and the reason."""

    is_promoted: bool
    why: str


def decide(spec: EvaluationSpec, comparisons: Sequence[Comparison], *, faults: Sequence[str] = ()) -> Promotion:
    """Decide whether the candidate is promoted. The decision uses the metric of the first comparison.

    Each of `faults` is a reason against the candidate, even if the candidate has better metrics.
    """
    first = comparisons[0]
    reasons = [*faults, *_reasons_against(spec, comparisons)]
    if first.gain is not None:
        praise = f"{first.metric} is better by {_percent(first.gain.value)}, {_range(first.gain)}"
    elif first.left_out.in_service:
        praise = f"{first.metric} of the model in service is not finite in any row"
    else:
        praise = "no model was in service"
    return Promotion(is_promoted=not reasons, why="; ".join([*(reasons or [praise]), *_remarks(comparisons)]))


def asked(candidate: Candidate, spec: RetrainSpec, models: Models, *, now: datetime) -> Candidate:
    """Return the candidate to record after an evaluation.

    With `promotion = "ask"`, a better candidate waits for a person. Without a better candidate, no person is asked. If
    a candidate of a later slot already waits, no person is asked. A candidate never replaces a version that was trained
    for a later slot.
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


def _reasons_against(spec: EvaluationSpec, comparisons: Sequence[Comparison]) -> Iterator[str]:
    first = comparisons[0]
    for each in comparisons:
        if each.left_out.candidate:
            yield f"{each.metric} is not finite in {_rows(each.left_out.candidate, each.left_out)}"
        elif each.candidate is None and not each.left_out.in_service:
            yield f"{each.metric} is not finite in any row"
    if first.gain is not None and first.gain.low < spec.min_gain:
        least = f"its lower end must reach {_percent(spec.min_gain)}"
        yield f"the gain in {first.metric} is {_percent(first.gain.value)}, {_range(first.gain)}; {least}"
    for each in comparisons[1:]:
        allowed = spec.guards.get(each.metric)
        if allowed is not None and each.gain is not None and each.gain.value < -allowed:
            yield f"{each.metric} is worse by {_percent(-each.gain.value)}; at most {_percent(allowed)} is accepted"
    for group, gain in first.groups.items():
        if gain < -spec.max_group_loss:
            worse = f"{first.metric} is worse by {_percent(-gain)} where {group}"
            yield f"{worse}; at most {_percent(spec.max_group_loss)} is accepted"


def _remarks(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Return remarks for a reader of the decision. These remarks do not affect the decision."""
    yield from comparisons[0].group_notes
    for each in comparisons:
        count = each.left_out.in_service + each.left_out.both
        if count and each.candidate is not None:
            yield f"{each.metric} was compared without {_rows(count, each.left_out)}: it is not finite there"


def _rows(count: int, left_out: LeftOut) -> str:
    """Describe the rows in words. If all rows have the same cause, the text contains the row numbers."""
    if count != left_out.count:
        return f"{count:,} {'row' if count == 1 else 'rows'}"
    numbers = ", ".join(map(str, left_out.first))
    return (
        f"row {numbers}"
        if count == 1
        else f"{count:,} rows ({numbers}{', ...' if count > len(left_out.first) else ''})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _range(interval: Interval) -> str:
    return f"95 % interval {_percent(interval.low)} to {_percent(interval.high)}"
