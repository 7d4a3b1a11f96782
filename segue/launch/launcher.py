"""A trainer that runs: one protocol for a single process and for several ranks, wherever they run."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from segue.errors import SegueError
from segue.launch.assignment import Assignment


@dataclass(frozen=True)
class Ending:
    """The end of a trainer on another machine, as it was reported to its launcher."""

    in_words: str
    """What ended, and how: `its Slurm job 12 ended as NODE_FAIL`."""
    was_out_of_memory: bool = False
    had_machine: bool = True
    """Whether it was started at all."""
    was_refused: bool = False
    """Whether someone withdrew it before it was started: it is started again only after a pause."""
    refusal: SegueError | None = None
    """Why it cannot be started, now or later, unless a person changes something."""


class Trainer(Protocol):
    """A running trainer, or one that waits for the machines on which it will run."""

    def poll(self) -> int | None:
        """The exit code (negative: the signal that killed it), None while it waits or runs."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How it ended, once it has; None for a trainer on this machine, whose exit code says everything."""
        ...

    def why_waiting(self) -> str | None:
        """What it waits for before it starts; None once it runs, as far as is known. Does not block."""
        ...

    def is_known_to_run(self) -> bool:
        """Whether it runs for certain, so that a trainer that does not answer hangs.

        False if it is suspended, or if its machine may be gone.
        """
        ...

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Pass a termination notice on, as a signal. Safe from a signal handler; harmless once it has ended."""
        ...

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Block until it ends, at most this long; returns the exit code, or None when time ran out.

        When it has ended, processes that it left behind are ended too.
        """
        ...

    def dump_stacks(self) -> None:
        """Make it write the stack of every thread to its output, even while it hangs."""
        ...

    def freeze(self) -> None:
        """Suspend it, as an overloaded machine would."""
        ...

    def thaw(self) -> None:
        """Let it continue."""
        ...

    def kill(self) -> None:
        """End it and all processes it started without warning, as a machine that vanishes would."""
        ...


def pid_of(trainer: Trainer) -> int | None:
    """The process of a trainer on this machine; None for one elsewhere."""
    pid = getattr(trainer, "pid", None)
    return pid if isinstance(pid, int) else None


class StandbyTrainer(Trainer, Protocol):
    """A trainer that boots first and gets its assignment later. It ends by itself when this process does."""

    def is_booted(self) -> bool:
        """Whether it would start an assignment at once."""
        ...

    def take(self, assignment: Assignment) -> None:
        """Give it its assignment; may be called once."""
        ...
