"""The interface between a program's session and the attempt that trains the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from segue.trainer.programs.own_files import OwnFiles
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.workloads.base import Steps, Workload
from segue.trainer.workloads.components import Component


class AttemptEnded(SystemExit):
    """The exception that ends the program at a safe point, because the attempt ends. AttemptEnded is not an error."""


class Owner(Protocol):
    """An attempt that trains a program, as seen by the session."""

    @property
    def ranks(self) -> Ranks:
        """The ranks of this attempt."""
        ...

    def restore(self, components: Mapping[str, Component]) -> None:
        """Restore these components from the checkpoint, if there is one."""
        ...

    @property
    def stored(self) -> Collection[str]:
        """Names of the components in the checkpoint; empty if there is no checkpoint."""
        ...

    def own_files(self, since: datetime) -> OwnFiles:
        """Files that earlier attempts wrote and that the program has read or may have read."""
        ...

    def begin(self, live: Workload) -> Steps:
        """Start the attempt's training loop."""
        ...

    def is_stopping(self, step: int) -> bool:
        """Whether the attempt would stop at the safe point after this number of steps."""
        ...

    def wants_state(self, step: int, *, goal: float) -> bool:
        """Whether the attempt would save or stop at the safe point after this number of steps."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """A `with` block in which the program evaluates. In this block, no step is made, and the trainer does not count
        as hung."""
        ...
