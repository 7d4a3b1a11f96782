"""Disturbs a run on this machine: sends SIGKILL or SIGTERM to the run's trainer, close to a commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from segue.clock import SystemClock
from segue.launch.launcher import Trainer
from segue.notices.disturbance import DisturbanceKind
from segue.records import SegmentPlan, StopReason, WitnessRow
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog

_ENDS_AS = {DisturbanceKind.KILL: StopReason.LOST, DisturbanceKind.NOTICE: StopReason.NOTICE}


_SLOW_SECONDS = 2.0
"""If commits are this number of seconds apart, the launcher's regular checks are frequent enough for a target."""

_SAVES_UNSEALED = 2
"""Maximum number of saves for which a kill waits until steps after a save are known.

If the run saves at each step, there may be no steps after a save.
"""


class Target(NamedTuple):
    """A disturbance that is due after the commit of this step."""

    step: int
    kind: DisturbanceKind


class LocalDisturber:
    """Ends the trainer by a kill or a notice, at a random moment after the commit of each target.

    The trainer runs in slices, with a pause after each slice, and the disturber ends the trainer in a pause. Slices are
    short near a target, and while commits are frequent. Therefore even a fast recipe cannot train beyond the target
    before the disturber acts. A kill waits until steps after the newest commit are known, because an earlier kill
    proves less. The slices do not change results.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        chance: random.Random,
        every_steps: int,
        witness_steps: int,
        progress: Callable[[int], None],
    ) -> None:
        """`every_steps` is the save interval. `witness_steps` is the number of steps to compare after a resume."""
        self._targets, self._chance, self._every_steps = list(targets), chance, every_steps
        self._progress = progress
        self._witness_steps = witness_steps
        self._made: dict[str, Target] = {}

    def __call__(self, trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
        history = read_history(runlog)
        self._progress(history.committed_step)
        attempt = history.attempt_of(plan.segment, plan.attempt)
        if attempt is None or attempt.claim.attempt_id in self._made:
            return
        self._repeat_missed(history)
        if not self._targets:
            return
        target = self._targets[0]
        if not self._reaches(target, trainer, runlog, plan):
            return
        del self._targets[0]
        self._made[attempt.claim.attempt_id] = target
        if target.kind is DisturbanceKind.KILL:
            trainer.kill()
        else:
            trainer.give_notice()
            trainer.thaw()

    def _reaches(self, target: Target, trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> bool:
        """Run the trainer in slices up to the target, and leave the trainer frozen at the target.

        If the trainer is slow or has ended, return False.
        """
        committed, ran_seconds = -1, 0.0
        trainer.freeze()
        while not self._is_due(runlog, plan, target):
            trainer.thaw()
            if (reached := read_history(runlog).committed_step) != committed:
                committed, ran_seconds = reached, 0.0
                self._progress(committed)
            is_near = committed >= target.step - self._every_steps
            if not is_near and ran_seconds > _SLOW_SECONDS:
                return False
            slice_seconds = self._chance.uniform(0.001, 0.004) * (1 if is_near else 3)
            SystemClock().sleep(slice_seconds)
            ran_seconds += slice_seconds
            if trainer.poll() is not None:
                return False
            trainer.freeze()
        return True

    def _is_due(self, runlog: RunLog, plan: SegmentPlan, target: Target) -> bool:
        history = read_history(runlog)

        def beaten() -> Sequence[WitnessRow]:
            beat = last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt))
            return beat.rows if beat is not None else ()

        return is_due(
            history, plan, target, every_steps=self._every_steps, witness_steps=self._witness_steps, beaten=beaten
        )

    def _repeat_missed(self, history: History) -> None:
        """If a disturbance came after the planned end of its attempt, plan the disturbance again."""
        last = next(reversed(self._made), None)
        if last is None or last in self.hits(history):
            return
        self._targets.insert(0, self._made.pop(last))

    @property
    def is_next_elsewhere(self) -> bool:
        """Whether the next attempt must find the folder without the files of earlier attempts, as on another machine.

        The value is True after every second disturbance, including the last one.
        """
        return bool(self._made) and len(self._targets) % 2 == 0

    def hits(self, history: History) -> dict[str, DisturbanceKind]:
        """Return the disturbances that ended an attempt. The key is the id of the attempt."""
        named = ((attempt_id, made.kind, history.attempt_named(attempt_id)) for attempt_id, made in self._made.items())
        return {
            attempt_id: kind
            for attempt_id, kind, attempt in named
            if attempt is not None and attempt.report is not None and attempt.report.stop_reason is _ENDS_AS[kind]
        }


def is_due(
    history: History,
    plan: SegmentPlan,
    target: Target,
    *,
    every_steps: int,
    witness_steps: int,
    beaten: Callable[[], Sequence[WitnessRow]],
) -> bool:
    """Whether the disturber must end the attempt of a plan now, for this target.

    A kill waits until enough steps after the newest commit are known: as many as a resume compares, or as many as there
    are between two saves. If a save comes before the seal of the previous save, there are no sealed steps. Without
    sealed steps, the function uses the rows of the newest heartbeat, which `beaten` returns.
    """
    newest, attempt = history.newest, history.attempt_of(plan.segment, plan.attempt)
    if newest is None or newest.manifest.step < target.step or attempt is None or newest.ref not in attempt.commits:
        return False
    is_late = newest.manifest.step >= target.step + _SAVES_UNSEALED * every_steps
    if target.kind is not DisturbanceKind.KILL or newest.rows or is_late:
        return True
    known = min(witness_steps, every_steps - 1)
    return known > 0 and any(row.step == newest.manifest.step + known for row in beaten())
