"""Starts a trainer process at the same time as its segment's engine, because the imports of both take seconds.

The trainer imports torch while the engine imports Prefect. Then the trainer waits for its assignment. If the process
that started the trainer ends first, the trainer's standard input is closed, and the trainer ends too.
"""

from __future__ import annotations

from segue.launch.assignment import Assignment
from segue.launch.child import ChildProcess
from segue.launch.launcher import Trainer
from segue.launch.local import EARLY_OPTION, TRAINER_COMMAND, ProcessTrainer
from segue.launch.output import OnLine
from segue.launch.registry import launch

_waiting: list[ChildProcess] = []
"""The trainer that waits for this process's first assignment. The list has at most one trainer."""


def start_early() -> None:
    """Start a trainer for the first assignment of this process."""
    if not _waiting:
        _waiting.append(ChildProcess([*TRAINER_COMMAND, EARLY_OPTION], has_stdin=True, has_output=True))


def launch_soonest(assignment: Assignment, *, on_line: OnLine) -> Trainer:
    """Start the trainer for an assignment. Use the trainer that was started early if it is suitable."""
    spec = assignment.spec
    fits = spec.ranks == 1 and not spec.trains_elsewhere
    if _waiting and fits and _waiting[0].process.poll() is None:
        return ProcessTrainer(assignment, on_line=on_line, child=_waiting.pop())
    discard_early()
    return launch(assignment, on_line=on_line)


def discard_early() -> None:
    """End the trainer that was started early, if it is unused."""
    while _waiting:
        _waiting.pop().discard()
