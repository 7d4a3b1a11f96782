"""Defines the protocol of an experiment tracker. The protocol has three methods."""

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
    """One run with all its segments. A tracker shows it as one run."""

    run_id: str
    key: str
    """A unique key of the run.

    If a run id is used again after the run's store was deleted, the new run has another key.
    """
    params: Mapping[str, str]
    """The recipe or program, the seed, the steps, and the values of `config`."""
    tags: Mapping[str, str]
    store: StoreSpec
    """The store of the run's checkpoints, for `segue.load_checkpoint(run_id, store=store)`."""


@dataclass(frozen=True)
class TrackedEnd:
    """The end of a run, with facts about the run that a tracker should keep."""

    status: Literal["finished", "failed", "stopped"]
    reason: str
    at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)
    """Facts about the run: segments, preemptions, verdicts, cost."""
    files: Sequence[Path] = ()
    """Pictures and tables. These files are deleted when `end` returns."""


class Tracker(Protocol):
    """Shows runs in another tool. Each row is a committed step, and no step is sent twice.

    A process may be killed during any call of the tracker. The next process begins with `begin` again. An exception
    does not affect the run. The exception is logged, and `begin` is called again later.
    """

    def begin(self, run: TrackedRun) -> int:
        """Create the run, or find it by its key.

        Return the newest step with all its numbers, or 0 if there is no such step.
        """
        ...

    def log(self, rows: Sequence[CommittedRow]) -> None:
        """Add rows in the order of their steps.

        All these steps are newer than the result of `begin` and than earlier rows.
        """
        ...

    def end(self, end: TrackedEnd) -> None:
        """Close the run. A second call, or a call after a kill during the first call, must not duplicate anything."""
        ...
