"""What simulated runs know of spot: all of it while they are there or wait for it, less while on on-demand."""

from __future__ import annotations

import numpy as np

from segue.policy.rules.hazards import DOWN_RATES, UNSEEN_SECONDS, UP_RATES, age_bin
from segue.policy.rules.sentinel import PAUSES_SECONDS, SENTINEL_SECONDS
from segue.policy.rules.view import Flags, Floats, Knowledge, Spells

_PAUSES = np.array(PAUSES_SECONDS)


class Sight:
    """Spot as runs know it: up or down, for how long, and how its spells ended so far."""

    def __init__(self, now: Flags, *, knowledge: Knowledge, tick_seconds: float) -> None:
        runs = len(now)
        self._knowledge, self._tick = knowledge, tick_seconds
        self.is_up, self.age = now.copy(), np.full(runs, UNSEEN_SECONDS)
        self.seen = Spells.none(runs)
        self.sentinel_seconds = np.zeros(runs)
        self._look_in, self._looks = np.zeros(runs), np.zeros(runs, np.intp)

    def look(self, now: Flags, *, active: Flags, away: Flags, has_standby: Flags) -> None:
        """One tick later. `away`: on on-demand, where nothing is seen but through a sentinel or a standby."""
        if self._knowledge == "free":
            known = np.ones_like(away)
        elif self._knowledge == "none":
            known = ~away
        else:
            known = ~away | has_standby | self._sentinels_tell(now, away & active & ~has_standby)
        ended = known & (now != self.is_up)
        bins = age_bin(self.age)
        rate = np.where(self.is_up, UP_RATES[bins], DOWN_RATES[bins]) * self._tick
        watched_up, watched_down = active & known & self.is_up, active & known & ~self.is_up
        self.seen = Spells(
            self.seen.up_ends + (ended & watched_up),
            self.seen.up_expected + np.where(watched_up, rate, 0.0),
            self.seen.down_ends + (ended & watched_down),
            self.seen.down_expected + np.where(watched_down, rate, 0.0),
        )
        self.age = np.where(ended, 0.0, self.age + self._tick)
        self.is_up = np.where(known, now, self.is_up)

    def _sentinels_tell(self, now: Flags, away: Flags) -> Flags:
        """A sentinel that waits on the pool tells by starting; after a start it is sent again a while later."""
        self._look_in = np.where(away, self._look_in - self._tick, 0.0)
        due: Flags = away & (self._look_in < self._tick / 2)
        starts = due & now
        self.sentinel_seconds += np.where(starts, SENTINEL_SECONDS, 0.0)
        self._looks = np.where(starts & self.is_up, self._looks + 1, np.where(starts | ~away, 0, self._looks))
        pause: Floats = _PAUSES[np.minimum(self._looks, len(_PAUSES) - 1)]
        self._look_in = np.where(starts, pause, self._look_in)
        return due
