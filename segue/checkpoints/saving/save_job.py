"""The input of the background writer: the attempt that saves, and the saves and seals themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from segue.checkpoints.saving.staging import Staged
from segue.records import CheckpointRef, Environment, Finding, WitnessRow


@dataclass(frozen=True)
class Author:
    """The attempt that saves: the facts that all of its commits share."""

    attempt_id: str
    epoch: int
    parent: CheckpointRef | None
    environment: Environment
    commits: bool = True
    """False: another rank commits the shards that this rank makes durable."""
    require: Callable[[], None] = lambda: None
    """Called before each commit, with the log read up to it; an exception from it ends the writer's work."""


class CurvePart(Protocol):
    """A stretch of the loss curve."""

    @property
    def number(self) -> int: ...

    def to_parquet(self) -> bytes: ...


class Metric:
    """The user's metric of a save, which may come after its bytes: the commit waits until it is known or given up.

    Without `is_pending`, no later metric is expected.
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
        """Record the metric, unless it was given up before."""
        if not self.is_known:
            self.value = value
            self._is_known.set()

    def give_up(self) -> None:
        """Let the commit continue without the metric."""
        self._is_known.set()

    def wait(self) -> None:
        """Block until the metric is known or given up."""
        self._is_known.wait()


@dataclass(frozen=True)
class SaveJob:
    """One staged state on its way to a commit."""

    staged: Staged
    step: int
    samples_seen: int
    epoch: int
    metric: Metric
    curve: Sequence[CurvePart]
    """The parts of the loss curve that are new since the previous save."""
    untracked: tuple[Finding, ...] = ()
    """Findings about state outside the components, each with the save that saw it first."""


@dataclass(frozen=True)
class SealJob:
    """Witness rows for the checkpoint at `step`."""

    step: int
    rows: tuple[WitnessRow, ...]
