"""The requests of a program's session to the attempt that trains it, and how the attempt ends the program."""

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
    """Ends the program at a safe point, because its attempt ends. Not an error."""


class Owner(Protocol):
    """The attempt that trains the program."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that train together."""
        ...

    def restore(self, components: Mapping[str, Component]) -> None:
        """Put the checkpoint's state into these components, if there is a checkpoint."""
        ...

    @property
    def stored(self) -> Collection[str]:
        """Names of the components that the checkpoint holds, if there is one."""
        ...

    def own_files(self, since: datetime) -> OwnFiles:
        """The files that the run wrote in its earlier attempts, and that the program has read or could have read."""
        ...

    def begin(self, live: Workload) -> Steps:
        """Start the attempt's training loop."""
        ...

    def is_stopping(self, step: int) -> bool:
        """Whether the attempt would stop at a safe point that followed this many steps."""
        ...

    def wants_state(self, step: int, *, goal: float) -> bool:
        """Whether the attempt would save or stop at a safe point that followed this many steps."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """A block in which the program evaluates: it makes no step, and does not hang."""
        ...
