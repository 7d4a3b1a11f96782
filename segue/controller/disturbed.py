"""A trainer of a drill's run: its segment kills it, or gives it a notice, when the store has a request for it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from segue.clock import Clock
from segue.launch.launcher import Trainer
from segue.notices.disturbance import DisturbanceKind, requested_disturbance
from segue.records import SegmentPlan
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec

log = logging.getLogger(__name__)


def look_seconds(spec: RunSpec) -> float:
    """Shortest time between two looks for a request."""
    # On a remote store each look is a request that is paid for.
    return spec.liveness.heartbeat_seconds if spec.store.is_remote else 0.0


class DisturbedTrainer:
    """Carries out the request to disturb one attempt, once."""

    def __init__(
        self, spec: RunSpec, plan: SegmentPlan, trainer: Trainer, *, give_notice: Callable[[], None], clock: Clock
    ) -> None:
        self._spec, self._plan, self._trainer = spec, plan, trainer
        self._give_notice, self._clock = give_notice, clock
        self._runlog: RunLog | None = None
        self._attempt_id: str | None = None
        self._look_at = -math.inf

    def look(self) -> None:
        """Check once whether a disturbance is requested; SIGKILL or SIGTERM follows at once.

        Raises:
            SegueError: the store could not be read; look again later.
        """
        at = self._clock.monotonic()
        if at < self._look_at:
            return
        self._look_at = at + look_seconds(self._spec)
        if self._runlog is None:
            self._runlog = open_log(self._spec, clock=self._clock)
        if self._attempt_id is None:
            attempt = read_history(self._runlog).attempt_of(self._plan.segment, self._plan.attempt)
            if attempt is None:
                return
            self._attempt_id = attempt.claim.attempt_id
        found = requested_disturbance(self._runlog.store, run_id=self._spec.run_id, attempt_id=self._attempt_id)
        if found is None:
            return
        self._look_at = math.inf
        log.warning("the drill disturbs the trainer kind=%s attempt=%s", found.kind, self._attempt_id)
        if found.kind is DisturbanceKind.KILL:
            self._trainer.kill()
        else:
            self._give_notice()
