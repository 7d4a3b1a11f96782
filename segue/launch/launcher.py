"""Defines the protocol of a trainer: a single process or several ranks, on this machine or elsewhere."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from segue.errors import SegueError
from segue.launch.assignment import Assignment


@dataclass(frozen=True)
class Ending:
    """A launcher's description of the end of a trainer on another machine."""

    in_words: str
    """A description of the end, for example `its Slurm job 12 ended as NODE_FAIL`."""
    was_out_of_memory: bool = False
    had_machine: bool = True
    """Whether the trainer was started on a machine."""
    was_refused: bool = False
    """Whether the trainer was removed from the queue before its start. segue then pauses before the next start."""
    refusal: SegueError | None = None
    """The reason why the trainer can never start until a person changes something. None if the trainer can start."""


class Trainer(Protocol):
    """A trainer that runs, or that waits for machines."""

    def poll(self) -> int | None:
        """Return the exit code of the trainer. Return None if the trainer waits or runs.

        A negative exit code is the number of the signal that killed the trainer.
        """
        ...

    @property
    def ending(self) -> Ending | None:
        """The end of the trainer. The value is None before the end, and for a trainer on this machine.

        For a trainer on this machine, the exit code is enough.
        """
        ...

    def why_waiting(self) -> str | None:
        """Return why the trainer has not started. Return None if it runs or probably runs. The call does not block."""
        ...

    def is_known_to_run(self) -> bool:
        """Whether the trainer certainly runs, so that a trainer that does not answer must be hung.

        The result is False if the trainer is suspended, or if its machine may be gone.
        """
        ...

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a termination notice to the trainer as a signal. After the trainer's end, the call has no effect.

        A signal handler may call this method.
        """
        ...

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait at most `timeout_seconds` for the end of the trainer. Return the exit code, or None if the time ran out.

        After the trainer's end, the method also ends the processes that the trainer left.
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
    """Return the process id of a trainer on this machine. Return None for a trainer elsewhere."""
    pid = getattr(trainer, "pid", None)
    return pid if isinstance(pid, int) else None


class StandbyTrainer(Trainer, Protocol):
    """A trainer that boots first and gets its assignment later. The trainer ends when this process ends."""

    def is_booted(self) -> bool:
        """Whether the trainer has booted and can start an assignment immediately."""
        ...

    def take(self, assignment: Assignment) -> None:
        """Give the trainer its assignment. This method may be called only once."""
        ...
