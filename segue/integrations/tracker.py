"""Defines `Tracker`, the protocol of an experiment tracker: the methods `begin`, `log` and `end`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from segue.curves.committed import CommittedRow
from segue.spec import StoreSpec

__all__ = ["CommittedRow", "TrackedEnd", "TrackedRun", "Tracker"]


@dataclass(frozen=True)
class TrackedRun:
    """A run with all its segments, which a tracker shows as one run."""

    run_id: str
    key: str
    """A unique key of the run.

    If a new run uses the run id of a deleted run, the new run has another key.
    """
    params: Mapping[str, str]
    """The recipe or program, the seed, the steps, and the values of `config`."""
    tags: Mapping[str, str]
    store: StoreSpec
    """The store of the run's checkpoints, for `segue.load_checkpoint(run_id, store=store)`."""


@dataclass(frozen=True)
class TrackedEnd:
    """The end of a run, with the results that a tracker should keep."""

    status: Literal["finished", "failed", "stopped"]
    reason: str
    at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)
    """Numbers of the run: steps, segments, verdicts, preemptions, cost."""
    files: Sequence[Path] = ()
    """Paths of pictures and tables. segue deletes these files when `end` returns."""


class Tracker(Protocol):
    """Shows runs in another tool. Each row is a committed step, and segue sends no step twice.

    segue may be killed during any call of the tracker. The next process begins with `begin` again. An exception of the
    tracker does not affect the run: segue logs the exception, and calls `begin` again later.
    """

    def begin(self, run: TrackedRun) -> int:
        """Create the run, or find it by its key.

        Return the newest step whose numbers the tracker has completely. If the tracker has no step, return 0.
        """
        ...

    def log(self, rows: Sequence[CommittedRow]) -> None:
        """Add rows in the order of their steps.

        The steps are newer than the step that `begin` returned, and newer than all earlier rows.
        """
        ...

    def end(self, end: TrackedEnd) -> None:
        """Close the run. A second call must not duplicate anything, even if a kill interrupted the first call."""
        ...
