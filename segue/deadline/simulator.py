"""Replays spot availability against a policy and the clamp, many runs at once. Pure.

Time goes in ticks, as in the published work: spot is up or down for a whole tick, and dies at its end. `harshness`
makes it worse than that: kills in mid-tick, deaths noticed late, checkpoints that cost time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segue.deadline import clamp
from segue.deadline.hazards import DOWN_RATES, UNSEEN_SECONDS, UP_RATES, age_bin
from segue.deadline.policies import Policy
from segue.deadline.table import SENTINEL_SECONDS
from segue.deadline.view import Flags, Floats, Job, Mode, Spells, View

_LOOKS = np.array([600.0, 1200.0, 2400.0])
"""Seconds until a sentinel is sent again after spot was up and not taken; the last goes on."""


@dataclass(frozen=True)
class Outcome:
    """What became of each run. Costs in spot seconds."""

    cost: Floats
    spot_seconds: Floats
    on_demand_seconds: Floats
    preemptions: Floats
    lost_seconds: Floats
    sentinel_seconds: Floats
    finished_seconds: Floats
    """From the start to the goal."""
    is_late: Flags
    was_hopeless: Flags
    """Whether the deadline could not be met for certain when the run began."""
    modes: np.ndarray | None = None
    """Mode by run and tick, where it was asked for."""


@dataclass(frozen=True)
class Harshness:
    """What a tick may cost beyond the published setting. Seconds."""

    save_seconds: float = 0.0
    """Each save's cost in computing time."""
    save_every_seconds: float = 0.0
    """Computing between two saves; 0: everything is saved at once and at no cost."""
    detection_seconds: float = 0.0
    """From a death to the next decision."""
    warned_share: float = 1.0
    """Share of kills that leave time for a last save."""

    @property
    def at_risk_seconds(self) -> float:
        return self.save_every_seconds


def simulate(
    policy: Policy,
    job: Job,
    up: Flags,
    *,
    tick_seconds: float,
    harshness: Harshness | None = None,
    traced: bool = False,
) -> Outcome:
    """Run a job once for each row of `up` (runs, ticks), which must cover its deadline."""
    return _Runs(policy, job, up, tick_seconds, harshness or Harshness()).go(traced=traced)


class _Runs:
    def __init__(self, policy: Policy, job: Job, up: Flags, tick: float, harsh: Harshness) -> None:
        runs = len(up)
        self.policy, self.job, self.up, self.tick, self.harsh = policy, job, up, tick, harsh
        self.work = np.full(runs, job.work_seconds)
        self.mode = np.full(runs, Mode.IDLE, np.int8)
        self.boot = np.zeros(runs)
        self.spare = np.full(runs, np.inf)
        self.known_up = up[:, 0].copy()
        self.age = np.full(runs, UNSEEN_SECONDS)
        self.look_in = np.zeros(runs)
        self.looks = np.zeros(runs, np.intp)
        self.seen = Spells.none(runs)
        self.cost, self.spot, self.on_demand = np.zeros(runs), np.zeros(runs), np.zeros(runs)
        self.sentinel, self.preemptions, self.lost = np.zeros(runs), np.zeros(runs), np.zeros(runs)
        self.finished = np.full(runs, np.inf)

    def go(self, *, traced: bool) -> Outcome:
        job, tick = self.job, self.tick
        hopeless = np.full(
            len(self.work), clamp.is_late_at(job.total_seconds, job.work_seconds, job.changeover_seconds)
        )
        modes = []
        for at in range(self.up.shape[1]):
            remaining = job.total_seconds - at * tick
            if remaining <= -tick * 400 or not (self.work > 0).any():
                break
            self._see(at)
            self._choose(remaining)
            if traced:
                modes.append(np.where(self.work > 0, self.mode, -1))
            self._pass(at)
        late = self.finished > job.total_seconds + 1e-6
        return Outcome(
            cost=self.cost,
            spot_seconds=self.spot,
            on_demand_seconds=self.on_demand,
            preemptions=self.preemptions,
            lost_seconds=self.lost,
            sentinel_seconds=self.sentinel,
            finished_seconds=self.finished,
            is_late=late,
            was_hopeless=hopeless,
            modes=np.array(modes).T if traced else None,
        )

    def _see(self, at: int) -> None:
        """What is known of spot now, and what that says of its hazards."""
        now = self.up[:, at]
        active = self.work > 0
        gone = active & (self.mode == Mode.SPOT) & ~now
        self.preemptions += gone
        self.mode[gone] = Mode.IDLE
        self.boot[gone] = 0.0
        # A spare that dies as it boots leaves on-demand at work.
        self.spare[~now] = np.inf
        away = self.mode == Mode.ON_DEMAND
        knows = np.ones_like(away)
        if self.job.knowledge == "blind":
            knows = ~away
        elif self.job.knowledge == "sentinel":
            knows = ~away | self._sentinels_tell(away & active, now)
        if at == 0:
            return
        changed = knows & (now != self.known_up)
        rate = np.where(self.known_up, UP_RATES[age_bin(self.age)], DOWN_RATES[age_bin(self.age)]) * self.tick
        watched = active & knows
        self.seen = Spells(
            self.seen.up_ends + (watched & changed & self.known_up),
            self.seen.up_expected + np.where(watched & self.known_up, rate, 0.0),
            self.seen.down_ends + (watched & changed & ~self.known_up),
            self.seen.down_expected + np.where(watched & ~self.known_up, rate, 0.0),
        )
        self.age = np.where(changed, 0.0, self.age + self.tick)
        self.known_up = np.where(knows, now, self.known_up)

    def _sentinels_tell(self, away: Flags, now: Flags) -> Flags:
        """A sentinel that waits on the pool tells by starting; after a start it is sent again a while later."""
        self.look_in = np.where(away, self.look_in - self.tick, 0.0)
        due = away & (self.look_in <= 1e-6) & ~np.isfinite(self.spare) | (away & np.isfinite(self.spare))
        starts = due & now & ~np.isfinite(self.spare)
        self.sentinel += np.where(starts, SENTINEL_SECONDS, 0.0)
        self.cost += np.where(starts, SENTINEL_SECONDS, 0.0)
        self.looks = np.where(starts, np.where(self.known_up, self.looks + 1, 0), np.where(away, self.looks, 0))
        self.look_in = np.where(starts, _LOOKS[np.minimum(self.looks, len(_LOOKS) - 1)], self.look_in)
        return np.asarray(due, bool)

    def view(self, remaining: float) -> View:
        return View(
            job=self.job,
            remaining_seconds=np.full(len(self.work), remaining),
            work_seconds=self.work,
            mode=self.mode,
            is_up=self.known_up,
            spell_seconds=self.age,
            preemptions=self.preemptions,
            seen=self.seen,
        )

    def _choose(self, remaining: float) -> None:
        job, here = self.job, self.mode
        now = self.known_up
        wish = self.policy.choose(self.view(remaining))
        slack = remaining - self.work - np.where(here == Mode.SPOT, self.boot, 0.0)
        handing = (here == Mode.ON_DEMAND) & job.handover & (wish == Mode.SPOT)
        self.spare = np.where(handing & now, np.minimum(self.spare, job.changeover_seconds), np.inf)
        wish = np.where(handing, np.int8(Mode.ON_DEMAND), wish)
        wish = np.where((wish == Mode.SPOT) & ~now & (here != Mode.SPOT), np.int8(Mode.IDLE), wish)
        boot = np.where(here == Mode.SPOT, self.boot, job.changeover_seconds)
        risk = np.where(wish == Mode.SPOT, np.minimum(boot, self.tick), self.tick)
        slack = remaining - self.work
        allowed = clamp.permits(slack, risk_seconds=risk, on_demand_seconds=job.changeover_seconds)
        wish = np.where((wish == Mode.ON_DEMAND) | allowed, wish, np.int8(Mode.ON_DEMAND))
        starts = (wish != here) & (wish != Mode.IDLE)
        self.boot = np.where(starts, job.changeover_seconds, np.where(wish == Mode.IDLE, 0.0, self.boot))
        self.mode = wish.astype(np.int8)

    def _pass(self, at: int) -> None:
        """One tick goes by."""
        job, tick = self.job, self.tick
        active = self.work > 0
        runs = active & (self.mode != Mode.IDLE)
        booting = np.minimum(self.boot, tick)
        used = np.where(runs, np.minimum(booting + self.work, tick), 0.0)
        worked = np.where(runs, np.minimum(self.work, tick - booting), 0.0)
        self.finished = np.where(runs & (worked >= self.work - 1e-9), at * tick + used, self.finished)
        self.work = np.where(runs, np.maximum(self.work - worked, 0.0), self.work)
        self.work[self.work < 1e-9] = 0.0
        self.boot = self.boot - booting
        on_spot, on_demand = runs & (self.mode == Mode.SPOT), runs & (self.mode == Mode.ON_DEMAND)
        spare = on_demand & np.isfinite(self.spare)
        overlap = np.where(spare, np.minimum(self.spare, used), 0.0)
        self.spot += np.where(on_spot | spare, used, 0.0)
        self.on_demand += np.where(spare, overlap, np.where(on_demand, used, 0.0))
        self.cost += np.where(on_spot | spare, used, 0.0)
        self.cost += job.price_ratio * np.where(spare, overlap, np.where(on_demand, used, 0.0))
        moved = spare & (self.spare <= tick + 1e-9)
        self.mode[moved] = Mode.SPOT
        self.spare = np.where(spare & ~moved, self.spare - tick, np.inf)
