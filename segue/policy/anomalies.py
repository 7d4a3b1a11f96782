"""What follows from steps whose numbers went bad: go back, leave a batch out, or give up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from segue.records import Anomaly, SegmentReport, Skip
from segue.runlog.history import History
from segue.spec import RunSpec

_MOST_NAMED = 4


def anomalies_of(reports: Iterable[SegmentReport]) -> list[Anomaly]:
    """What ended attempts by its numbers, oldest first."""
    return [report.anomaly for report in reports if report.anomaly is not None]


def skips_of(spec: RunSpec, history: History) -> tuple[Skip, ...]:
    """What attempts leave out from now on, in the order of the samples.

    A batch is left out when it went bad, was done again from a checkpoint, and went bad again. Once left out it stays
    so, whatever the spec says later: a resume from before it could not reproduce the run otherwise.
    """
    ever = {skip for entry in history.decisions if entry.plan is not None for skip in entry.plan.skips}
    seen = anomalies_of(history.last_words())
    times = Counter(anomaly.batch for anomaly in seen)
    ever.update(anomaly.batch for anomaly in seen if times[anomaly.batch] > 1 and _may_skip(spec, anomaly))
    return tuple(sorted(ever, key=lambda skip: skip.samples_seen))


def reason_to_give_up(spec: RunSpec, history: History) -> str | None:
    """Why one more rollback would not help; None while it may."""
    seen = anomalies_of(history.fresh_reports)
    if not seen or spec.anomalies.action(seen[-1].kind) == "off":
        return None
    last = seen[-1]
    is_again = sum(anomaly.batch == last.batch for anomaly in seen) > 1
    if is_again and last.batch not in skips_of(spec, history):
        return f"{last.sentence}, and again when it was done again from a checkpoint. {_fix(last)}"
    if len(seen) > spec.anomalies.max_rollbacks:
        spent = f"{spec.anomalies.max_rollbacks} rollbacks are spent; last, {last.sentence}."
        return f"{spent}{_shared(seen)} Fix the data or the learning rate, or raise anomalies.max_rollbacks."
    return None


def what_is_made_good(spec: RunSpec, history: History, *, skips: tuple[Skip, ...]) -> str | None:
    """What the next attempt makes good; None when the one before it did not end by its numbers."""
    last = history.fresh_reports[-1] if history.fresh_reports else None
    if last is None or last.anomaly is None:
        return None
    number = len(anomalies_of(history.fresh_reports))
    words = f"rollback {number} of at most {spec.anomalies.max_rollbacks} to step {history.committed_step}"
    skipped = ", which are left out from now on" if last.anomaly.batch in skips else ""
    return f"{words}: {last.anomaly.sentence}{skipped}"


def _may_skip(spec: RunSpec, anomaly: Anomaly) -> bool:
    # A scale that collapsed had many batches before that one to blame.
    return spec.anomalies.action(anomaly.kind) == "skip" and anomaly.channel != "loss_scale"


def _fix(anomaly: Anomaly) -> str:
    named = ", ".join(map(str, anomaly.sample_ids[:_MOST_NAMED]))
    more = f" and {anomaly.batch.sample_count - _MOST_NAMED} more" if anomaly.batch.sample_count > _MOST_NAMED else ""
    field = "spikes" if anomaly.kind == "spike" else "non_finite"
    look = f"Look at its samples ({named}{more}), the learning rate and the number format"
    if anomaly.channel == "loss_scale":
        return f"{look}; no batch alone brought the scale down, so none is left out."
    return f'{look}, or leave the batch out with anomalies.{field} = "skip"; then start the run again.'


def _shared(seen: list[Anomaly]) -> str:
    """The samples that were in each of the batches, where there are few: most likely the cause."""
    batches = {anomaly.batch: set(anomaly.sample_ids) for anomaly in seen}
    shared = sorted(set.intersection(*batches.values())) if len(batches) > 1 else []
    if not 0 < len(shared) <= _MOST_NAMED:
        return ""
    return f" Common to its {len(batches)} batches: sample {', '.join(map(str, shared))}."
