"""The protocol of an experiment tracker: three methods, which every tracker can be given."""

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
    """One run of segue over all its segments: what a tracker shows as one run."""

    run_id: str
    key: str
    """Names this run and no other: a run id that is used again after its store was deleted has another key."""
    params: Mapping[str, str]
    """What is trained: recipe or program, seed, steps, the values of `config`."""
    tags: Mapping[str, str]
    store: StoreSpec
    """Where the run's checkpoints are, for `segue.load_checkpoint(run_id, store=store)`."""


@dataclass(frozen=True)
class TrackedEnd:
    """The end of a run, and the facts that are kept about the run."""

    status: Literal["finished", "failed", "stopped"]
    reason: str
    at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)
    """Segments, preemptions, verdicts, cost."""
    files: Sequence[Path] = ()
    """Pictures and tables; they are deleted when `end` returns."""


class Tracker(Protocol):
    """Shows runs elsewhere. Each row is a committed step, and no step is sent twice.

    A process may be killed in any of these calls; the next one begins with `begin` again. An exception ends an
    attempt to send, never the run: it is logged, and `begin` is called again later.
    """

    def begin(self, run: TrackedRun) -> int:
        """Create or find the run by its key; return the newest step of which all numbers have arrived, 0 for none."""
        ...

    def log(self, rows: Sequence[CommittedRow]) -> None:
        """Add rows in the order of their steps, all later than what `begin` returned and what was logged since."""
        ...

    def end(self, end: TrackedEnd) -> None:
        """Close the run. A second call, or a call after a kill in the middle, must double nothing."""
        ...
