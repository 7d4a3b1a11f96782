"""The trainer of a standby. The process prepares for training, and then waits for its assignment."""

from __future__ import annotations

import logging

from segue.clock import Clock
from segue.launch.assignment import Assignment
from segue.launch.rendezvous import LaunchFolder
from segue.notices.board import NoticeBoard
from segue.process import Parent
from segue.recipe import import_build
from segue.spec import RunSpec
from segue.trainer.process.environment import prepare_device
from segue.trainer.ranks.group import local_rank

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


def boot_and_wait(
    folder: LaunchFolder, rank: int, *, spec: RunSpec, board: NoticeBoard, clock: Clock
) -> Assignment | None:
    """Prepare for training, and then wait for an assignment. Return None after a notice, or if the owner has ended.

    The call uses neither the run's log nor the run's checkpoints, so the process may be killed at any moment.

    Raises:
        SpecError: the requested device is not available.
        RecipeError: the recipe cannot be imported.
    """
    started_by = Parent()
    prepare_device(spec, local_rank=local_rank())
    if spec.recipe is not None:
        import_build(spec.recipe)
    folder.boot(rank)
    log.info("standby booted, waiting for an assignment")
    while True:
        # The assignment is read before the notice. If a rank left because of the notice, ranks that saw the assignment
        # would wait for it.
        assignment = folder.assignment
        if assignment is not None:
            return assignment
        if board.read() is not None or not folder.has_owner() or not started_by.is_alive():
            log.info("standby ends without an assignment")
            return None
        clock.sleep(_POLL_SECONDS)
