"""Defines the jobs of the background writer (saves and seals), and the attempt that makes these jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from segue.checkpoints.saving.staging import Staged
from segue.records import CheckpointRef, CurveDigest, Environment, Finding, WitnessRow


@dataclass(frozen=True)
class Author:
    """The attempt that saves, and the values that are equal in all commits of the attempt."""

    attempt_id: str
    epoch: int
    parent: CheckpointRef | None
    environment: Environment
    commits: bool = True
    """Whether this rank commits. If the value is false, another rank commits the shards that this rank writes."""
    require: Callable[[], None] = lambda: None
    """The writer calls this function before each commit, after the writer has read the log.

    If the function raises an exception, the writer ends.
    """


class CurvePart(Protocol):
    """A part of the loss curve."""

    @property
    def number(self) -> int: ...

    def to_parquet(self) -> bytes: ...

    def digest(self) -> CurveDigest: ...


class Metric:
    """The user's metric that belongs to a save.

    If `is_pending` is true, the commit waits until the metric is set or given up. If `is_pending` is false, the commit
    does not wait for a metric.
    """

    def __init__(self, value: float | None = None, *, is_pending: bool = False) -> None:
        self.value = value
        self._is_known = threading.Event()
        if not is_pending:
            self._is_known.set()

    @property
    def is_known(self) -> bool:
        return self._is_known.is_set()

    def set(self, value: float) -> None:
        """Set the metric. The call has no effect if the metric is already known or given up."""
        if not self.is_known:
            self.value = value
            self._is_known.set()

    def give_up(self) -> None:
        """Let the commit continue without the metric."""
        self._is_known.set()

    def wait(self) -> None:
        """Block until the metric is set or given up."""
        self._is_known.wait()


@dataclass(frozen=True)
class SaveJob:
    """A staged state to be written and committed."""

    staged: Staged
    step: int
    samples_seen: int
    epoch: int
    metric: Metric
    curve: Sequence[CurvePart]
    """The parts of the loss curve that were added since the previous save."""
    untracked: tuple[Finding, ...] = ()
    """Findings about untracked state. Each finding is reported with the save at which it was first found."""
    lost_ranks: tuple[int, ...] = ()
    """Ranks that had ended before the save, so that rank 0 stores the whole state."""


@dataclass(frozen=True)
class SealJob:
    """The witness rows that seal the checkpoint at `step`."""

    step: int
    rows: tuple[WitnessRow, ...]
