"""What to do after a broken resume: once more, then from one older checkpoint, then stop and say so. Pure.

A kill in the wrong moment or a flipped bit in memory is over at the second try. What the older one does not fix either
is the recipe's, and no machine will fix it.
"""

from __future__ import annotations

from dataclasses import dataclass

from segue.continuity.recipe_diff import CHANNEL
from segue.records import VerdictKind
from segue.runlog.entries import VerdictEntry
from segue.runlog.history import Checkpoint, History

SET_ASIDE = "resumes from it were broken, and one from an older checkpoint was not"
"""Why the recovery quarantines a checkpoint."""

_TRIES_IN_PLACE = 2
_MOST_SET_ASIDE = 3
"""After so many it is not the checkpoints: they are broken as they are made."""


@dataclass(frozen=True)
class RecoveryStep:
    """How to go on after a broken resume."""

    take: Checkpoint
    """Resume from this one, or an older one where its bytes are damaged."""
    reason: str


def next_recovery_step(history: History) -> RecoveryStep | None:
    """Where to resume after the newest resume was broken; None when nothing is left to try.

    Another setup is not tried again: it would be the same.
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
            take, f"once more from step {take.manifest.step}, for the resume was broken: {_what(newest)}"
        )
    older = [checkpoint for checkpoint in history.usable if checkpoint.ref.slot < newest.parent.slot]
    if len(parents) > 1 or not older:
        return None
    where = f"step {older[-1].manifest.step}, one older than step {newest.parent.step}"
    return RecoveryStep(older[-1], f"from {where}, from which {len(of_newest)} resumes were broken: {_what(newest)}")


def to_set_aside(history: History) -> Checkpoint | None:
    """A checkpoint from which resumes were broken while one from an older checkpoint then was not: it is at fault."""
    for checkpoint in history.usable:
        verdicts = [entry.verdict.kind for entry in history.resumes if entry.parent == checkpoint.ref]
        is_suspect = verdicts.count(VerdictKind.BROKEN) >= _TRIES_IN_PLACE and verdicts[-1] is VerdictKind.BROKEN
        if is_suspect and any(entry.parent.slot < checkpoint.ref.slot for entry in _after_last(history, checkpoint)):
            return checkpoint
    return None


def _after_last(history: History, checkpoint: Checkpoint) -> list[VerdictEntry]:
    """Good resumes since the last one from a checkpoint."""
    last = max(number for number, entry in enumerate(history.resumes) if entry.parent == checkpoint.ref)
    good = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
    return [entry for entry in history.resumes[last + 1 :] if entry.verdict.kind in good]


def _what(entry: VerdictEntry) -> str:
    return entry.verdict.findings[0].sentence
