"""The protocol of a running trainer. A trainer is a single process or several ranks, on this machine or elsewhere."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from segue.errors import SegueError
from segue.launch.assignment import Assignment


@dataclass(frozen=True)
class Ending:
    """The facts that a launcher knows about the end of a trainer on another machine."""

    in_words: str
    """A description of the end, for example `its Slurm job 12 ended as NODE_FAIL`."""
    was_out_of_memory: bool = False
    had_machine: bool = True
    """Whether the trainer was started on a machine."""
    was_refused: bool = False
    """Whether the trainer was removed from the queue before its start. If so, the next start comes after a pause."""
    refusal: SegueError | None = None
    """The reason why the trainer can never be started unless a person changes something; None if the trainer can be
    started."""


class Trainer(Protocol):
    """A trainer that runs, or that waits for its machines."""

    def poll(self) -> int | None:
        """Return the exit code of the trainer. A negative number is the signal that killed the trainer. None means that
        the trainer still waits or runs."""
        ...

    @property
    def ending(self) -> Ending | None:
        """The end of the trainer. None before its end, and for a trainer on this machine, because there the exit code
        is enough."""
        ...

    def why_waiting(self) -> str | None:
        """The reason why the trainer has not started yet; None if it is known or assumed to run. The call does not
        block."""
        ...

    def is_known_to_run(self) -> bool:
        """Whether the trainer certainly runs. If it certainly runs and does not answer, it must be hung.

        False if the trainer is suspended, or if its machine may be gone.
        """
        ...

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a termination notice to the trainer as a signal. A signal handler may call this method. After the
        trainer's end, the call has no effect."""
        ...

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait at most `timeout_seconds` for the end of the trainer. Return the exit code, or None if the time ran out.

        After the trainer's end, the processes that it left behind are ended too.
        """
        ...

    def dump_stacks(self) -> None:
        """Make the trainer write the stacks of all its threads to its output, even if it hangs."""
        ...

    def freeze(self) -> None:
        """Suspend the trainer, to imitate an overloaded machine."""
        ...

    def thaw(self) -> None:
        """Let a suspended trainer continue."""
        ...

    def kill(self) -> None:
        """Kill the trainer and all its processes without warning, to imitate the loss of the machine."""
        ...


def pid_of(trainer: Trainer) -> int | None:
    """Process id of a trainer on this machine; None for a trainer elsewhere."""
    pid = getattr(trainer, "pid", None)
    return pid if isinstance(pid, int) else None


class StandbyTrainer(Trainer, Protocol):
    """A trainer that boots first and gets its assignment later. When this process ends, the trainer ends by itself."""

    def is_booted(self) -> bool:
        """Whether the trainer has booted and can start an assignment immediately."""
        ...

    def take(self, assignment: Assignment) -> None:
        """Give the trainer its assignment. This method may be called only once."""
        ...
