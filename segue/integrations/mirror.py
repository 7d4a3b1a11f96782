"""Sends a run from the store to a tracker: each committed step once, and the end of the run."""

from __future__ import annotations

import json
import logging
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from segue.curves.committed import CommittedRows
from segue.errors import MissingExtraError
from segue.integrations.tracker import TrackedEnd, TrackedRun, Tracker
from segue.reports.cost_report import cost_report
from segue.reports.run_plot import draw
from segue.reports.tables import segment_rows
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 500
_STATUS: dict[str, Literal["finished", "stopped"]] = {
    "finished": "finished",
    "stopped": "stopped",
    "cancelled": "stopped",
    "budget": "stopped",
}
"""Maps the action of the last decision to a status. For any other action, the status is `failed`."""


class Mirror:
    """Sends one run to one tracker.

    The store and the tracker record the progress, so any process may continue to send.
    """

    def __init__(self, runlog: RunLog, tracker: Tracker) -> None:
        self._runlog, self._tracker = runlog, tracker
        self._rows = CommittedRows(runlog)
        self._sent: int | None = None
        self._ended_at_slot: int | None = None

    def update(self) -> None:
        """Send the steps that the tracker lacks. If the run has ended, also send its end.

        Before the first decision, send nothing. The method does not catch exceptions of the tracker. After an
        exception, the next call begins again after the newest step of the tracker.

        Raises:
            StoreReadError: the store could not be read.
        """
        history = read_history(self._runlog)
        if not history.decisions or history.spec is None:
            return
        try:
            if self._sent is None:
                self._sent = self._tracker.begin(tracked_run(self._runlog, history.spec, history))
            self._send_rows(history)
            if history.is_over and self._ended_at_slot != history.next_slot:
                self._send_end(history)
                self._ended_at_slot = history.next_slot
        except BaseException:
            self._sent = None
            raise

    @property
    def run_id(self) -> str:
        return self._runlog.run_id

    @property
    def sent_step(self) -> int:
        """The newest step that was sent to the tracker."""
        return self._sent or 0

    def _send_rows(self, history: History) -> None:
        rows = self._rows.after(self.sent_step, history)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            self._tracker.log(batch)
            self._sent = batch[-1].step

    def _send_end(self, history: History) -> None:
        with tempfile.TemporaryDirectory(prefix="segue-tracker-") as folder:
            self._tracker.end(tracked_end(self._runlog, history, folder=Path(folder)))


def tracked_run(runlog: RunLog, spec: RunSpec, history: History) -> TrackedRun:
    """Return what a tracker needs at the beginning of a run."""
    began_at = history.decisions[0].written_at.isoformat()
    params = spec.identity() | {"ranks": str(spec.ranks), "device": spec.device, "policy": spec.policy.name}
    if spec.deadline is not None:
        params["deadline"] = spec.deadline.isoformat(timespec="seconds")
    tags = {"segue.run": runlog.run_id, "segue.store": runlog.store.url}
    key = f"{runlog.run_id}@{began_at}"
    # This is the absolute place of the store; the path in the spec may be relative to another folder.
    store = spec.store.model_copy(update={"url": runlog.store.url})
    return TrackedRun(run_id=runlog.run_id, key=key, params=params, tags=tags, store=store)


def tracked_end(runlog: RunLog, history: History, *, folder: Path) -> TrackedEnd:
    """Return what a tracker needs at the end of a run. Write pictures and tables into `folder`."""
    last = history.decisions[-1]
    files = [folder / "segments.json"]
    files[0].write_text(json.dumps({"segments": segment_rows(history), "verdicts": _verdicts(history)}, indent=2))
    try:
        (folder / "run.png").write_bytes(draw(runlog))
        files.append(folder / "run.png")
    except MissingExtraError as error:
        log.info("plot of the run not sent to the tracker reason=%s", error)
    return TrackedEnd(
        status=_STATUS.get(last.action, "failed"),
        reason=last.reason,
        at=last.written_at,
        tags=_end_tags(history),
        files=tuple(files),
    )


def _end_tags(history: History) -> dict[str, str]:
    verdicts = [attempt.verdict.kind.value for attempt in history.attempts if attempt.verdict is not None]
    tags = {"segue.step": str(history.committed_step), "segue.segments": str(len(history.last_reports()))}
    tags |= {f"segue.resumes_{kind}": str(verdicts.count(kind)) for kind in dict.fromkeys(verdicts)}
    if history.spec is not None:
        cost = cost_report(history.spec, history)
        tags |= {"segue.preemptions": str(cost.preemptions), "segue.cost": cost.paid, "segue.summary": cost.sentence}
    return tags


def _verdicts(history: History) -> list[dict[str, Any]]:
    return [
        {
            "segment": attempt.claim.segment,
            "attempt": attempt.claim.attempt,
            "verdict": attempt.verdict.kind.value,
            "sentence": attempt.verdict.sentence,
        }
        for attempt in history.attempts
        if attempt.verdict is not None
    ]
