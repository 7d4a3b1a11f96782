"""A trainer process that starts beside its segment's engine: both need seconds to import their libraries.

It imports torch while the engine imports Prefect, and then waits for its assignment. Without one it ends by itself: its
standard input is closed when the process that started it ends.
"""

from __future__ import annotations

from segue.launch.assignment import Assignment
from segue.launch.child import ChildProcess
from segue.launch.launcher import Trainer
from segue.launch.local import EARLY_OPTION, TRAINER_COMMAND, ProcessTrainer
from segue.launch.output import OnLine
from segue.launch.registry import launch

_waiting: list[ChildProcess] = []
"""The trainer that waits for this process's first assignment; one at most."""


def start_early() -> None:
    """Start the trainer that this process's first assignment gets."""
    if not _waiting:
        _waiting.append(ChildProcess([*TRAINER_COMMAND, EARLY_OPTION], has_stdin=True, has_output=True))


def launch_soonest(assignment: Assignment, *, on_line: OnLine) -> Trainer:
    """Start the trainer of an assignment: the one that was started early, if there is one and it fits."""
    spec = assignment.spec
    fits = spec.ranks == 1 and not spec.trains_elsewhere
    if _waiting and fits and _waiting[0].process.poll() is None:
        return ProcessTrainer(assignment, on_line=on_line, child=_waiting.pop())
    discard_early()
    return launch(assignment, on_line=on_line)


def discard_early() -> None:
    """End the trainer that was started early, if it was not used."""
    while _waiting:
        _waiting.pop().discard()
