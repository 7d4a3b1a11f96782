"""A resume point: the steps before it, the witness of the steps after it, and their replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segue.curves.frame import curve_frame
from segue.errors import NoResumeError
from segue.records import CheckpointRef, Verdict, WitnessRow
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog

if TYPE_CHECKING:
    import pandas as pd

CHANNELS = ("loss", "grad_norm", "param_norm")

_COLUMNS = ["step", *CHANNELS]


@dataclass(frozen=True)
class ResumePoint:
    """One judged resume. Its frames have the columns `step`, `loss`, `grad_norm` and `param_norm`, by step."""

    segment: int
    attempt: int
    parent: CheckpointRef
    verdict: Verdict
    before: pd.DataFrame
    """The steps up to the committed step, by the attempt that committed it."""
    witness: pd.DataFrame
    """The steps after it, by that attempt; empty if nothing was sealed."""
    replay: pd.DataFrame
    """The steps after it, by the attempt that resumed; beyond the witness if the curve has more."""


def resume_point_of(
    log: RunLog, *, segment: int | None = None, attempt: int | None = None, steps: int = 24
) -> ResumePoint:
    """The newest judged resume of a segment and attempt, or of the run; at most `steps` steps on either side.

    A broken resume committed nothing, so no curve has its steps: they come from the log entry of its verdict.

    Raises:
        NoResumeError: there is none.
        MissingExtraError: pandas is not installed.
    """
    history = read_history(log.reload())
    judged = [(found.claim, entry) for entry in history.resumes if (found := history.attempt_named(entry.attempt_id))]
    wanted = [
        (claim, entry)
        for claim, entry in judged
        if segment in {None, claim.segment} and attempt in {None, claim.attempt}
    ]
    if not wanted:
        others = tuple(dict.fromkeys((claim.segment, claim.attempt) for claim, _ in judged))
        raise NoResumeError(run_id=log.run_id, segment=segment, attempt=attempt, there=others)
    claim, entry = max(wanted, key=lambda pair: pair[0].epoch)
    parent, frame = entry.parent, curve_frame(log, history)
    by_parent = frame[(frame["attempt_id"] == parent.attempt_id) & (frame["step"] <= parent.step)]
    by_this = frame[(frame["attempt_id"] == entry.attempt_id) & (frame["step"] > parent.step)]
    return ResumePoint(
        segment=claim.segment,
        attempt=claim.attempt,
        parent=parent,
        verdict=entry.verdict,
        before=_rows(by_parent).tail(steps),
        witness=_frame_of(_witness(log, history, parent)).head(steps),
        replay=(_rows(by_this) if len(by_this) else _frame_of(entry.replay)).head(steps),
    )


def _witness(log: RunLog, history: History, parent: CheckpointRef) -> Sequence[WitnessRow]:
    checkpoint = history.checkpoint(parent)
    if checkpoint is not None and checkpoint.rows:
        return checkpoint.rows
    # The attempt was killed between the commit and its seal: the resume took the rows of the last heartbeat.
    beat = last_heartbeat(log, history.attempt_named(parent.attempt_id))
    return tuple(row for row in beat.rows if row.step > parent.step) if beat is not None else ()


def _rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[_COLUMNS].sort_values("step", ignore_index=True)


def _frame_of(rows: Sequence[WitnessRow]) -> pd.DataFrame:
    import pandas as pd

    return _rows(pd.DataFrame([[getattr(row, name) for name in _COLUMNS] for row in rows], columns=_COLUMNS))
