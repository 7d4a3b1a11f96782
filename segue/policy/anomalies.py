"""Decides how to react to steps with bad numbers: roll back, skip a batch, or stop the run. The module is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from segue.records import Anomaly, SegmentReport, Skip
from segue.runlog.history import History
from segue.spec import RunSpec

_MOST_NAMED = 4
"""Maximum number of samples that a message names."""


def anomalies_of(reports: Iterable[SegmentReport]) -> list[Anomaly]:
    """Return the anomalies that ended attempts, oldest first."""
    return [report.anomaly for report in reports if report.anomaly is not None]


def skips_of(spec: RunSpec, history: History) -> tuple[Skip, ...]:
    """Return the batches that attempts skip from now on, in the order of the samples.

    A run skips a batch that had bad numbers both before and after a rollback. The batch stays skipped even if a later
    run spec has other settings, so that a resume from an earlier checkpoint reproduces the run.
    """
    ever = {skip for entry in history.decisions if entry.plan is not None for skip in entry.plan.skips}
    seen = anomalies_of(history.last_reports())
    times = Counter(anomaly.batch for anomaly in seen)
    ever.update(anomaly.batch for anomaly in seen if times[anomaly.batch] > 1 and _may_skip(spec, anomaly))
    return tuple(sorted(ever, key=lambda skip: skip.samples_seen))


def reason_to_give_up(spec: RunSpec, history: History) -> str | None:
    """Return the reason why another rollback would not help, or None if another rollback may help."""
    seen = anomalies_of(history.fresh_reports)
    if not seen or spec.anomalies.action(seen[-1].kind) == "off":
        return None
    last = seen[-1]
    is_again = sum(anomaly.batch == last.batch for anomaly in seen) > 1
    if is_again and last.batch not in skips_of(spec, history):
        return f"{last.sentence}; the same batch had bad numbers again after a rollback. {_fix(last)}"
    if len(seen) > spec.anomalies.max_rollbacks:
        reached = f"the limit of {spec.anomalies.max_rollbacks} rollbacks is reached; last: {last.sentence}."
        fix = "correct the data or the learning rate, or set a higher value for anomalies.max_rollbacks."
        return f"{reached}{_shared(seen)} Fix: {fix}"
    return None


def rollback_reason(spec: RunSpec, history: History, *, skips: tuple[Skip, ...]) -> str | None:
    """Return the reason why the next attempt is a rollback.

    Return None if the previous attempt did not end because of bad numbers.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    if last is None or last.anomaly is None:
        return None
    number = len(anomalies_of(history.fresh_reports))
    rollback = f"rollback {number} of at most {spec.anomalies.max_rollbacks} to step {history.committed_step}"
    skipped = "; this batch is skipped from now on" if last.anomaly.batch in skips else ""
    return f"{rollback}: {last.anomaly.sentence}{skipped}"


def _may_skip(spec: RunSpec, anomaly: Anomaly) -> bool:
    # A loss scale falls over many batches, so the last batch is not the cause.
    return spec.anomalies.action(anomaly.kind) == "skip" and anomaly.channel != "loss_scale"


def _fix(anomaly: Anomaly) -> str:
    if not anomaly.sample_ids:
        return "Fix: check the data, the learning rate and the number format at that step; then start the run again."
    named = ", ".join(map(str, anomaly.sample_ids[:_MOST_NAMED]))
    more = f" and {anomaly.batch.sample_count - _MOST_NAMED} more" if anomaly.batch.sample_count > _MOST_NAMED else ""
    field = "spikes" if anomaly.kind == "spike" else "non_finite"
    check = f"Fix: check its samples ({named}{more}), the learning rate and the number format"
    if anomaly.channel == "loss_scale":
        return f"{check}. The loss scale fell over many batches, so no single batch is skipped."
    return f'{check}, or skip the batch with anomalies.{field} = "skip"; then start the run again.'


def _shared(seen: list[Anomaly]) -> str:
    """Name the samples that all bad batches have in common, if they are few. They are the likely cause."""
    batches = {anomaly.batch: set(anomaly.sample_ids) for anomaly in seen}
    shared = sorted(set.intersection(*batches.values())) if len(batches) > 1 else []
    if not 0 < len(shared) <= _MOST_NAMED:
        return ""
    return f" Samples in all {len(batches)} bad batches: {', '.join(map(str, shared))}."
