"""The resume rehearsal in one line of text: its progress, or its verdict with the fix. The module is pure."""

from __future__ import annotations

from segue.continuity.noise import FIX, in_words
from segue.policy.broken_resumes import is_rehearsal_due
from segue.records import VerdictKind
from segue.runlog.history import History
from segue.spec import RunSpec


def rehearsal_text(spec: RunSpec | None, history: History) -> str | None:
    """Return a text about the state of the rehearsal. Return None if the run has no rehearsal."""
    if history.drills:
        last = history.drills[-1]
        said = f"{last.verdict.sentence.rstrip('.')} (from step {last.checkpoint.step}, {last.seconds:.0f} s)"
        if last.verdict.noise:
            said += f"; {in_words(last.verdict.noise)}. Fix: {FIX}"
        refuted = last.verdict.kind is VerdictKind.BROKEN and history.broken_drill is None
        return f"{said}; refuted by a later resume" if refuted else said
    if spec is None or not is_rehearsal_due(spec, history, ranks=spec.ranks or 2):
        return None
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    if attempt is None or attempt.report is not None:
        return None
    is_sealed = any(c.rows and c.ref.attempt_id == attempt.claim.attempt_id for c in history.checkpoints)
    return "under way" if is_sealed else "begins after the first sealed checkpoint"
