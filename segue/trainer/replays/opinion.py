"""A second opinion about a resume whose replay differs from its witness: fresh processes replay the same steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segue.continuity.noise import FIX, NONE, Noise, in_words
from segue.continuity.recipe_diff import differing_paths
from segue.launch.assignment import Assignment
from segue.records import WitnessRow
from segue.runlog.history import Checkpoint
from segue.trainer.process.context import AttemptContext
from segue.trainer.replays.fresh import FreshProcesses, ReplayRequest, measured_noise
from segue.trainer.replays.replay_process import why_no_room

log = logging.getLogger(__name__)

_LIMIT_SECONDS = 900.0
"""Longest wait for all replays of one opinion, in seconds; building a recipe may take minutes."""


class SecondOpinion:
    """Asks fresh processes before a resume is judged as broken. The attempt waits in the meantime."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def noise(
        self,
        checkpoint: Checkpoint,
        *,
        witness: Sequence[WitnessRow],
        attempt: Sequence[WitnessRow],
        is_whole: bool,
        is_noisy: bool,
        is_lost: bool,
    ) -> Noise | None:
        """Return the noise between the attempt's rows and the witness; empty if noise explains nothing.

        Return None if a notice leaves no time for the replays.
        """
        if self._context.board.first_kind is not None:
            return None
        if (why := why_no_room(checkpoint.manifest.size_bytes)) != "":
            log.warning("no fresh process can repeat the steps: %s", why)
            return NONE
        context = self._context
        steps = max(row.step for row in witness) - checkpoint.manifest.step
        log.warning(
            "replay differs from the witness; fresh processes replay the steps step=%d",
            checkpoint.manifest.step,
        )
        with context.activity.waiting():
            found, is_complete = measured_noise(
                self._processes(checkpoint, steps=steps),
                witness,
                attempt,
                is_whole=is_whole,
                is_noisy=is_noisy,
                is_lost=is_lost,
            )
        if not is_complete and context.board.first_kind is not None:
            return None
        if found.floats:
            log.warning("%s; this noise sets the tolerances. Fix: %s", in_words(found.floats), FIX)
        return found

    def process_values(self, checkpoint: Checkpoint, setup: Mapping[str, Any]) -> tuple[str, ...]:
        """Return setup values that differ between a fresh process and this process, although both build the same
        recipe."""
        context = self._context
        if context.board.first_kind is not None or why_no_room(checkpoint.manifest.size_bytes):
            return ()
        log.warning("the setup differs from the checkpoint, building the recipe again in a fresh process")
        with context.activity.waiting():
            fresh = self._processes(checkpoint, steps=0).setup()
        return differing_paths(json.loads(json.dumps({name: setup[name] for name in fresh if name in setup})), fresh)

    def _processes(self, checkpoint: Checkpoint, *, steps: int) -> FreshProcesses:
        request = ReplayRequest(assignment=self._context.assignment, checkpoint=checkpoint.ref, steps=steps)
        return FreshProcesses(request, self._patience(), self._context.clock)

    def _patience(self) -> Callable[[], bool]:
        """Return a function that tells if waiting may go on; it must end at a notice and at the time limits."""
        context, clock = self._context, self._context.clock
        give_up_at = clock.monotonic() + _LIMIT_SECONDS
        if context.plan.max_seconds is not None:
            give_up_at = min(give_up_at, context.started_at + context.plan.max_seconds)

        def may_wait() -> bool:
            context.activity.goes_on()
            return context.board.first_kind is None and clock.monotonic() < give_up_at

        return may_wait


def may_ask(assignment: Assignment) -> bool:
    """Whether segue may ask fresh processes.

    It may not for programs, which would repeat all their other work too, and not if rehearsals are off.
    """
    return assignment.spec.recipe is not None and assignment.spec.continuity.rehearsal != "off"
