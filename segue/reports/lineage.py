"""Shows the lineage of a run's checkpoints: the parent of each checkpoint, and the verdicts on resumes from it.

The module is pure.
"""

from __future__ import annotations

from typing import Any

from segue.records import CheckpointRef, Verdict
from segue.runlog.history import Checkpoint, History
from segue.units import size

_MOST_ROWS = 20
_NEWEST = 5


def lineage_rows(history: History) -> tuple[list[dict[str, Any]], int]:
    """Rows of the most relevant checkpoints, newest first, and the number of the other checkpoints.

    The relevant checkpoints are the newest checkpoints, the checkpoints from which an attempt resumed, and the
    checkpoints in quarantine.
    """
    resumed = _resumes_by_checkpoint(history)
    newest = {checkpoint.ref for checkpoint in history.checkpoints[-_NEWEST:]}
    told = [c for c in history.checkpoints if c.ref in newest or c.ref in resumed or c.quarantined]
    shown = told[-_MOST_ROWS:]
    rows = [_row(checkpoint, resumed.get(checkpoint.ref, [])) for checkpoint in reversed(shown)]
    return rows, len(history.checkpoints) - len(shown)


def _row(checkpoint: Checkpoint, verdicts: list[Verdict]) -> dict[str, Any]:
    manifest = checkpoint.manifest
    origin = manifest.origin or (f"step {manifest.parent.step}" if manifest.parent is not None else "step 0")
    return {
        "step": manifest.step,
        "attempt": checkpoint.ref.attempt_id,
        "resumed from": origin,
        "size": size(manifest.size_bytes),
        "resumes from it": ", ".join(verdict.kind.value for verdict in verdicts) or "-",
        "state": "quarantined" if checkpoint.quarantined else "pruned" if checkpoint.is_pruned else "kept",
    }


def _resumes_by_checkpoint(history: History) -> dict[CheckpointRef, list[Verdict]]:
    found: dict[CheckpointRef, list[Verdict]] = {}
    for entry in history.resumes:
        found.setdefault(entry.parent, []).append(entry.verdict)
    return found
