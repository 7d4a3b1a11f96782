"""Plans the step or time at which the next segment commits and ends without a preemption. The module is pure."""

from __future__ import annotations

from typing import NamedTuple

from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.policy.pool_choice import PoolChoice
from segue.records import Capacity, StopReason
from segue.runlog.history import Checkpoint, History
from segue.spec import RunSpec

_HOUR = 3600.0
_LEAST_SECONDS, _LEAST_CHANGEOVERS = 1800.0, 20
"""The shortest segment with a planned end by default, in seconds and in changeovers.

With a shortest segment of 20 changeovers, planned ends cost at most 5 % of the time.
"""


class PlannedEnd(NamedTuple):
    """The limits of a segment, which ends at the first limit that it reaches. None means no limit."""

    step: int | None = None
    epoch: int | None = None
    seconds: float | None = None


def planned_end(spec: RunSpec, here: Situation, parent: Checkpoint | None) -> PlannedEnd:
    """Return the planned end of a segment that resumes from `parent`.

    Planned ends are at multiples of steps or epochs, so that a preemption does not shift later planned ends. If another
    changeover could cost the deadline, the segment has no planned end.
    """
    asked = spec.segment
    if (asked.steps, asked.epochs, asked.hours) == (None, None, None):
        return PlannedEnd(seconds=_usual_seconds(spec, here, parent))
    if not clamp.permits_spot(here):
        return PlannedEnd()
    step, epoch = (parent.manifest.step, parent.manifest.epoch) if parent is not None else (0, 0)
    end_step = None if asked.steps is None else (step // asked.steps + 1) * asked.steps
    return PlannedEnd(
        step=end_step if end_step is not None and end_step < spec.steps else None,
        epoch=None if asked.epochs is None else (epoch // asked.epochs + 1) * asked.epochs,
        seconds=None if asked.hours is None else asked.hours * _HOUR,
    )


def _usual_seconds(spec: RunSpec, here: Situation, parent: Checkpoint | None) -> float | None:
    """Return the seconds of a segment if the spec sets no planned end.

    Return None if a single segment trains the rest of the run.
    """
    least = max(_LEAST_SECONDS, _LEAST_CHANGEOVERS * here.changeover_seconds)
    if spec.trains_elsewhere:
        return None  # After each end, the run would wait in a queue again; a person may ask for that.
    if spec.segment.count == 1 or not clamp.permits_spot(here):
        return None
    if here.work_seconds is None:
        return least
    steps_left = spec.steps - (parent.manifest.step if parent is not None else 0)
    whole = here.work_seconds * spec.steps / max(steps_left, 1)
    seconds = max(whole / spec.segment.count, least)
    return seconds if here.work_seconds - seconds >= least else None


def kept_pool(spec: RunSpec, history: History) -> PoolChoice | None:
    """Return the pool of the spot machine that the run kept at a planned end, or None if it kept no machine."""
    last = history.fresh_reports[-1] if history.fresh_reports else None
    decision = history.decision_of(last.segment, last.attempt) if last is not None else None
    plan = decision.plan if decision is not None else None
    if last is None or plan is None or last.stop_reason is not StopReason.BOUND:
        return None
    if not plan.keeps_machine or last.leaves_machine:
        return None
    pools = [pool.deployment for pool in spec.pools.spot]
    if plan.capacity is not Capacity.SPOT or plan.deployment not in pools:
        return None
    return PoolChoice(plan.deployment, "the machine is kept" if len(pools) > 1 else "", is_kept=True)
