"""Decides what to do after a broken resume: try again, then resume from one older checkpoint, then stop the run.

The module also decides whether an attempt rehearses a resume, and whether a rehearsal ends the run.

A kill at a bad moment, or a flipped bit in memory, does not happen twice in a row. If the resume from the older
checkpoint is also broken, the fault is in the recipe, and another machine would not help. The module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from segue.continuity.recipe_diff import CHANNEL
from segue.records import Verdict, VerdictKind
from segue.runlog.entries import VerdictEntry
from segue.runlog.history import Checkpoint, History
from segue.spec import RunSpec

SET_ASIDE = "resumes from it were broken, and one from an older checkpoint was not"
"""The reason that recovery gives when it quarantines a checkpoint.

Logs of earlier versions contain this text, so do not change it.
"""

_TRIES_IN_PLACE = 2
_MOST_SET_ASIDE = 3
"""Maximum number of quarantined checkpoints. If more resumes are broken, the cause is not in single checkpoints."""


@dataclass(frozen=True)
class RecoveryStep:
    """How to continue after a broken resume."""

    take: Checkpoint
    """The checkpoint from which the run resumes.

    If the bytes of the checkpoint are damaged, the run resumes from an older checkpoint.
    """
    reason: str


def next_recovery_step(history: History) -> RecoveryStep | None:
    """Return the next recovery step after a broken resume, or None if no recovery step is left.

    If the setup has changed, segue does not try the resume again, because the setup would still differ.
    """
    broken = history.broken_resumes
    newest = broken[-1]
    set_aside = sum(checkpoint.quarantined == SET_ASIDE for checkpoint in history.checkpoints)
    if newest.verdict.findings[0].channel == CHANNEL or set_aside >= _MOST_SET_ASIDE:
        return None
    parents = {entry.parent for entry in broken}
    of_newest = [entry for entry in broken if entry.parent == newest.parent]
    take = history.checkpoint(newest.parent)
    if take in history.usable and take is not None and len(parents) == 1 and len(of_newest) < _TRIES_IN_PLACE:
        return RecoveryStep(
            take, f"second resume from step {take.manifest.step}, because the first was broken: {_what(newest)}"
        )
    older = [checkpoint for checkpoint in history.usable if checkpoint.ref.slot < newest.parent.slot]
    if len(parents) > 1 or not older:
        return None
    counted = f"from which {len(of_newest)} resumes were broken"
    reason = f"resume from step {older[-1].manifest.step} instead of step {newest.parent.step}, {counted}"
    return RecoveryStep(older[-1], f"{reason}: {_what(newest)}")


def to_set_aside(history: History) -> Checkpoint | None:
    """Return a checkpoint to quarantine.

    Its resumes were broken, but a later resume from an older checkpoint was not.
    """
    for checkpoint in history.usable:
        verdicts = [entry.verdict.kind for entry in history.resumes if entry.parent == checkpoint.ref]
        is_suspect = verdicts.count(VerdictKind.BROKEN) >= _TRIES_IN_PLACE and verdicts[-1] is VerdictKind.BROKEN
        if is_suspect and any(entry.parent.slot < checkpoint.ref.slot for entry in _after_last(history, checkpoint)):
            return checkpoint
    return None


def _after_last(history: History, checkpoint: Checkpoint) -> list[VerdictEntry]:
    """Return the verdicts of good resumes after the last resume from a checkpoint."""
    last = max(number for number, entry in enumerate(history.resumes) if entry.parent == checkpoint.ref)
    good = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
    return [entry for entry in history.resumes[last + 1 :] if entry.verdict.kind in good]


def _what(entry: VerdictEntry) -> str:
    return entry.verdict.findings[0].sentence


def is_rehearsal_due(spec: RunSpec, history: History, *, ranks: int) -> bool:
    """Whether an attempt should rehearse a resume.

    The result is True as long as no resume of the run was replayed, in a rehearsal or in an attempt. Runs with several
    ranks do not rehearse, because a rehearsal would need as many additional processes. Programs do not rehearse,
    because a second process would repeat everything that the program does besides training.
    """
    continuity = spec.continuity
    if continuity.rehearsal == "off" or not continuity.witness_steps or ranks > 1 or spec.recipe is None:
        return False
    return not history.drills and not any(entry.verdict.rows_compared for entry in history.resumes)


def verdict_to_stop(spec: RunSpec, history: History) -> Verdict | None:
    """Return the verdict of a rehearsal that ends the run.

    Return None if the run may continue or is finished.
    """
    # A run that a person started again rehearses again if a step is left.
    is_of_this_run = bool(history.drills) or history.is_committed(spec)
    return history.broken_drill if spec.continuity.rehearsal == "stop" and is_of_this_run else None
