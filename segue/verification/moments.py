"""Chooses the random moments at which a verification disturbs its run, one moment in each of several equal parts.

The module is pure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from segue.notices.disturbance import DisturbanceKind
from segue.runlog.history import History


class Moment(NamedTuple):
    """The moment of a disturbance, as a delay after the run was first seen at a step."""

    kind: DisturbanceKind
    step: int
    delay_seconds: float


@dataclass(frozen=True)
class Pace:
    """The speed of the undisturbed run."""

    first_commit_step: int
    last_step: int
    step_seconds: float
    save_interval_seconds: float

    @classmethod
    def of(cls, history: History) -> Self:
        """The pace of a run that has ended."""
        reports = history.last_reports()
        seconds, steps = sum(r.train_seconds for r in reports), sum(r.train_steps for r in reports)
        saves = [checkpoint.manifest.step for checkpoint in history.checkpoints]
        return cls(
            first_commit_step=min(saves, default=0),
            last_step=history.committed_step,
            step_seconds=seconds / steps if steps else 0.0,
            save_interval_seconds=seconds / max(len(saves), 1),
        )


def moments(
    kinds: Sequence[DisturbanceKind], pace: Pace, *, latency_seconds: float, chance: random.Random
) -> tuple[Moment, ...]:
    """Return one moment for each kind of disturbance, in random order, after the first commit and before the end of the
    run.

    The step of a run is only seen at heartbeats. A random delay spreads the moments over the time between two
    heartbeats, in which saves, seals and evaluations happen. A request takes `latency_seconds` until a segment carries
    it out.
    """
    order = chance.sample(list(kinds), len(kinds))
    count = max(len(order), 1)
    between = (pace.last_step - pace.first_commit_step) * pace.step_seconds
    longest_delay = min(pace.save_interval_seconds, between / (4 * count))
    reserved = math.ceil((latency_seconds + longest_delay) / pace.step_seconds) if pace.step_seconds else 1
    last = max(pace.last_step - reserved, pace.first_commit_step)
    part = (last - pace.first_commit_step) / count
    return tuple(
        Moment(
            kind,
            pace.first_commit_step + int(part * (number + chance.random())),
            chance.uniform(0.0, longest_delay),
        )
        for number, kind in enumerate(order)
    )
