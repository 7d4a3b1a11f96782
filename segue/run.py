"""Opens a run for inspection: its state, segments, checkpoints, loss curve and cost. The module writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from segue.clock import SystemClock
from segue.reports.cost_report import CostReport, cost_report
from segue.reports.summary import state_of, summarize
from segue.reports.tables import checkpoint_rows, decision_rows, segment_rows
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import DEFAULT_STORE, find_run
from segue.spec import RunSpec, StoreSpec

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A run, as it was at `open_run` or at the last `reload`."""

    def __init__(self, runlog: RunLog, history: History) -> None:
        self._runlog, self._history = runlog, history

    def __repr__(self) -> str:
        return f"<segue.Run {self.run_id}: {self.state}, step {self.step}>"

    @property
    def run_id(self) -> str:
        return self._runlog.run_id

    @property
    def spec(self) -> RunSpec | None:
        """The run spec of the newest start of the run."""
        return self._history.spec

    @property
    def state(self) -> str:
        """The state of the run, for example `finished`, `stopped` or `segment 2 attempt 1 on spot`."""
        return state_of(self._history)

    @property
    def step(self) -> int:
        """The step of the newest checkpoint from which an attempt may resume.

        If there is no usable checkpoint, the value is 0.
        """
        return self._history.committed_step

    @property
    def is_finished(self) -> bool:
        return self.spec is not None and self._history.is_finished(self.spec)

    @property
    def late_seconds(self) -> float | None:
        """Seconds by which the run is late, or will be late at the measured step time.

        If the run is early, the value is negative. If the run has no deadline or no measured step time, the value is
        None.
        """
        return summarize(self.run_id, self._history, now=SystemClock().now()).late_seconds

    @property
    def segments(self) -> list[dict[str, Any]]:
        """A row for each attempt: pool, steps, stop reason, lost steps, verdict, seconds."""
        return segment_rows(self._history)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every decision with its reason and its numbers, oldest first."""
        return decision_rows(self._history)

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """Every checkpoint in the log, oldest first, with its step, bytes, metric and state (kept or not)."""
        return checkpoint_rows(self._history)

    @property
    def cost(self) -> CostReport | None:
        """The paid time and the cost of the run so far. If the run was never opened for training, the value is None."""
        return cost_report(self.spec, self._history) if self.spec is not None else None

    def curve(self) -> pd.DataFrame:
        """Return the loss curve with one row for each step. The method needs the extra `data`."""
        from segue.curves.frame import curve

        return curve(self._runlog)

    def reload(self) -> Self:
        """Read the new records of the log, and return this run.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._history = read_history(self._runlog)
        return self


def open_run(run_id: str, store: StoreSpec | str | Path = DEFAULT_STORE) -> Run:
    """Open a run of a store for inspection, without writing anything.

    Raises:
        RunNotFoundError: the store has no run with this id.
        StoreUnreachableError: the store cannot be read.
    """
    return Run(*find_run(run_id, store))
