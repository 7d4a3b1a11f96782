"""Computes what simulated runs observe of spot.

Runs on spot, and runs that wait for spot, observe everything. Runs on on-demand observe less.
"""

from __future__ import annotations

import numpy as np

from segue.policy.rules.hazards import DOWN_RATES, UNKNOWN_AGE_SECONDS, UP_RATES, age_bin
from segue.policy.rules.sentinel import PAUSES_SECONDS, SENTINEL_SECONDS
from segue.policy.rules.view import Flags, Floats, Intervals, Knowledge

_PAUSES = np.array(PAUSES_SECONDS)


class Observation:
    """The observations of runs: whether spot is up or down, for how long, and the past ends of its intervals."""

    def __init__(self, now: Flags, *, knowledge: Knowledge, tick_seconds: float) -> None:
        runs = len(now)
        self._knowledge, self._tick = knowledge, tick_seconds
        self.is_up, self.age = now.copy(), np.full(runs, UNKNOWN_AGE_SECONDS)
        self.intervals = Intervals.none(runs)
        self.sentinel_seconds = np.zeros(runs)
        self._next_start, self._starts = np.zeros(runs), np.zeros(runs, np.intp)

    def update(self, now: Flags, *, active: Flags, away: Flags, has_standby: Flags) -> None:
        """Advance the observation by one tick.

        `away` means that a run is on on-demand, where only a sentinel or a standby observes spot.
        """
        if self._knowledge == "free":
            known = np.ones_like(away)
        elif self._knowledge == "none":
            known = ~away
        else:
            known = ~away | has_standby | self._sentinels_show(now, away & active & ~has_standby)
        ended = known & (now != self.is_up)
        bins = age_bin(self.age)
        rate = np.where(self.is_up, UP_RATES[bins], DOWN_RATES[bins]) * self._tick
        observed_up, observed_down = active & known & self.is_up, active & known & ~self.is_up
        self.intervals = Intervals(
            self.intervals.up_ends + (ended & observed_up),
            self.intervals.up_expected + np.where(observed_up, rate, 0.0),
            self.intervals.down_ends + (ended & observed_down),
            self.intervals.down_expected + np.where(observed_down, rate, 0.0),
        )
        self.age = np.where(ended, 0.0, self.age + self._tick)
        self.is_up = np.where(known, now, self.is_up)

    def _sentinels_show(self, now: Flags, away: Flags) -> Flags:
        """Return the runs whose sentinel starts, which shows that spot is up.

        segue starts the sentinel again after a pause.
        """
        self._next_start = np.where(away, self._next_start - self._tick, 0.0)
        due: Flags = away & (self._next_start < self._tick / 2)
        starts = due & now
        self.sentinel_seconds += np.where(starts, SENTINEL_SECONDS, 0.0)
        self._starts = np.where(starts & self.is_up, self._starts + 1, np.where(starts | ~away, 0, self._starts))
        pause: Floats = _PAUSES[np.minimum(self._starts, len(_PAUSES) - 1)]
        self._next_start = np.where(starts, pause, self._next_start)
        return due
