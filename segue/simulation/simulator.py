"""Simulates many runs at once, with a policy and the clamp, on given spot availability. The module is pure.

Time passes in ticks, as in the published work. Spot is up or down for a whole tick, a machine dies at the end of a
tick, and runs lose no work. `Harshness` adds deaths at any moment of a tick, late detection, and loss of the work since
the last save.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from segue.policy import clamp
from segue.policy.estimates import SEEN_START_FACTOR, UNSEEN_START_FACTOR
from segue.policy.rules.heuristics import Capped, Policy
from segue.policy.rules.view import IDLE, ON_DEMAND, SPOT, Flags, Floats, Job, View, Wishes
from segue.simulation.observation import Observation

_NOTHING_SECONDS = 1e-3
"""Remaining seconds of work that are only a rounding error."""
_OVERTIME = 2.0
"""Multiple of the deadline for which a late run is simulated, so that its cost is complete."""


class Spot(Protocol):
    """Determines for every run whether spot is up in a tick. An adversary decides by the modes of the runs."""

    @property
    def runs(self) -> int: ...

    def at(self, tick: int, modes: Wishes) -> Flags: ...


@dataclass(frozen=True)
class Replay:
    """Spot availability from traces, as an array of (runs, ticks). After the last tick, spot is down."""

    up: Flags

    @property
    def runs(self) -> int:
        return len(self.up)

    def at(self, tick: int, modes: Wishes) -> Flags:
        return self.up[:, tick] if tick < self.up.shape[1] else np.zeros(self.runs, bool)


@dataclass(frozen=True)
class Harshness:
    """Conditions that make a simulation harder than the published setting. All times are in seconds."""

    save_seconds: float = 0.0
    """Seconds for which a save blocks training, on any capacity."""
    save_every_seconds: float = 0.0
    """Seconds of work between two saves. If the value is 0, a run saves all work immediately."""
    dies_within_tick: bool = False
    """Whether a machine that is down at the next tick died at a random moment of this tick."""
    detection_seconds: float = 0.0
    """Seconds from a death to the next decision."""
    lost_by_a_death_seconds: float = 0.0
    """Seconds of work that each death loses, but at most the work of the attempt. The value applies if saves are not
    simulated one by one."""
    start_slack_seconds: float = 0.0
    """The least slack in seconds, beyond the clamp's requirement, at which a run begins or awaits a spot attempt."""
    start_factor: float = 1.0
    """The duration of a start on either capacity, as a multiple of the changeover known before the first start."""

    @property
    def pace(self) -> float:
        """Seconds of work that a run does per second, including saves."""
        return (
            self.save_every_seconds / (self.save_every_seconds + self.save_seconds) if self.save_every_seconds else 1.0
        )


@dataclass(frozen=True)
class SimulationResult:
    """The result of each simulated run. Costs are in spot seconds: one second of spot costs 1."""

    cost: Floats
    spot_seconds: Floats
    on_demand_seconds: Floats
    sentinel_seconds: Floats
    lost_seconds: Floats
    """Seconds of work that each run had to repeat."""
    preemptions: Floats
    finished_seconds: Floats
    """Seconds from the start to the goal. The value is infinite if the run was stopped long after its deadline."""
    is_late: Flags
    was_hopeless: bool
    """Whether the clamp could not guarantee the deadline at the start of the run."""
    modes: Wishes | None = None
    """The mode of each run as an array of (runs, ticks), with -1 after the run's goal. The value is None without
    `traced`."""


def simulate(
    policy: Policy,
    job: Job,
    spot: Spot | Flags,
    *,
    tick_seconds: float,
    harshness: Harshness | None = None,
    seed: int = 0,
    traced: bool = False,
) -> SimulationResult:
    """Simulate a job once for each run of `spot`.

    If `spot` is an array, it has the shape (runs, ticks) and must cover the deadline.
    """
    world: Spot = Replay(spot) if isinstance(spot, np.ndarray) else spot
    runs = _Runs(policy, job, world, tick_seconds=tick_seconds, harshness=harshness or Harshness(), seed=seed)
    return runs.go(traced=traced)


@dataclass
class _Machines:
    """The machine of each run, and the unsaved work on the machine. All times are in seconds."""

    boot: Floats
    """Remaining seconds of the machine's boot."""
    undetected: Floats
    """Remaining seconds until the run detects the death of its last machine."""
    since_start: Floats
    """Seconds of work of each run since the start of its machine."""
    unsaved: Floats
    """Seconds of work since the last save."""
    unsaved_before: Floats
    """Seconds of work since the last save, before the newest tick."""
    just_worked: Floats
    """Seconds of work in the newest tick."""

    @classmethod
    def none(cls, runs: int) -> Self:
        return cls(*(np.zeros(runs) for _ in range(6)))


@dataclass
class _Totals:
    """The amounts that each run has paid and lost so far. All values except `preemptions` are in seconds."""

    spot: Floats
    on_demand: Floats
    preemptions: Floats
    lost: Floats
    finished: Floats
    """Time in seconds at which the run reached its goal. Before the goal, the value is infinite."""

    @classmethod
    def zero(cls, runs: int) -> Self:
        nothing = [np.zeros(runs) for _ in range(4)]
        return cls(nothing[0], nothing[1], nothing[2], nothing[3], finished=np.full(runs, np.inf))


class _Runs:
    """The state of all simulated runs, tick by tick."""

    def __init__(
        self, policy: Policy, job: Job, spot: Spot, *, tick_seconds: float, harshness: Harshness, seed: int
    ) -> None:
        self._policy, self._spot = policy, spot
        self._job = replace(job, decides_every_seconds=tick_seconds)
        self._tick, self._harsh = tick_seconds, harshness
        self._random = np.random.default_rng(seed)
        runs = spot.runs
        self.mode = np.zeros(runs, np.int8)
        self.now = spot.at(0, self.mode)
        self.observation = Observation(self.now, knowledge=job.knowledge, tick_seconds=tick_seconds)
        self.work = np.full(runs, job.work_seconds)
        self.machines, self.totals = _Machines.none(runs), _Totals.zero(runs)
        self.standby, self.has_standby = np.full(runs, np.inf), np.zeros(runs, bool)

    def go(self, *, traced: bool) -> SimulationResult:
        job, tick, modes = self._job, self._tick, []
        at = 0
        while at * tick < job.total_seconds * _OVERTIME:
            if at:
                self._happen(at)
            if not (self.work > 0).any():
                break
            self._choose(job.total_seconds - at * tick)
            if traced:
                modes.append(np.where(self.work > 0, self.mode, np.int8(-1)))
            self._pass(at)
            at += 1
        return SimulationResult(
            cost=self.totals.spot + self.observation.sentinel_seconds + job.price_ratio * self.totals.on_demand,
            spot_seconds=self.totals.spot,
            on_demand_seconds=self.totals.on_demand,
            sentinel_seconds=self.observation.sentinel_seconds,
            lost_seconds=self.totals.lost,
            preemptions=self.totals.preemptions,
            finished_seconds=self.totals.finished,
            is_late=self.totals.finished > job.total_seconds + 1e-6,
            was_hopeless=clamp.is_hopeless(job, pace=self._harsh.pace),
            modes=np.array(modes, np.int8).T if traced else None,
        )

    def _happen(self, at: int) -> None:
        """Apply the changes of spot between two ticks."""
        now = self._spot.at(at, self.mode)
        gone = (self.machines.just_worked + self.work > 0) & (self.mode == SPOT) & ~now
        if not self._harsh.dies_within_tick:
            gone &= self.work > 0
        if gone.any():
            self._die(gone)
        active = self.work > 0
        self.standby[~now] = np.inf  # The spot machine dies as it boots: on-demand continues.
        away = self.mode == ON_DEMAND
        observes = active & (~away | self._is_worth_a_sentinel(self._job.total_seconds - at * self._tick))
        self.observation.update(now, active=observes, away=away, has_standby=away & self.has_standby)
        self.now = now

    def _is_worth_a_sentinel(self, remaining: float) -> Flags:
        """Whether a run on on-demand can return to spot with enough remaining work to pay for the return."""
        job, policy, work = self._job, self._policy, self.work / self._harsh.pace
        most = policy.preemptions if isinstance(policy, Capped) else np.inf
        needed = np.maximum(self._to_on_demand_seconds(), self._harsh.start_slack_seconds)
        can = (remaining - work >= needed) & (work > 2 * job.changeover_seconds) & (self.totals.preemptions < most)
        return np.asarray(can & policy.comes_back)

    def _die(self, gone: Flags) -> None:
        harsh = self._harsh
        undone = np.zeros(len(gone))
        if harsh.dies_within_tick:
            # The run did not do a part of the tick's work, possibly the last work of the job.
            undone = self.machines.just_worked * self._random.random(len(gone))
        lost = undone
        if harsh.save_every_seconds:
            lost = lost + (self.machines.unsaved_before + self.machines.just_worked - undone) % harsh.save_every_seconds
        lost = lost + np.minimum(harsh.lost_by_a_death_seconds, np.maximum(self.machines.since_start - undone, 0.0))
        lost = np.where(gone & (lost > _NOTHING_SECONDS), lost, 0.0)
        self.work += lost
        self.totals.finished[lost > 0] = np.inf
        self.totals.lost += lost
        self.machines.unsaved[gone] = 0.0
        self.totals.preemptions += gone
        self.mode[gone] = IDLE
        self.machines.boot[gone] = 0.0
        self.machines.undetected[gone] = harsh.detection_seconds

    def _choose(self, remaining: float) -> None:
        job, here = self._job, self.mode
        is_up = self.observation.is_up
        wish = self._policy.choose(
            View(
                job=job,
                remaining_seconds=np.full(len(here), remaining),
                work_seconds=self.work / self._harsh.pace,
                mode=here,
                is_up=is_up,
                age_seconds=self.observation.age,
                preemptions=self.totals.preemptions,
                observed=self.observation.intervals,
            )
        )
        wish = np.where((wish == IDLE) & (here == SPOT), SPOT, wish)
        if not job.may_return:
            wish = np.where(here == ON_DEMAND, here, wish)
        hands = (here == ON_DEMAND) & (wish != ON_DEMAND) & job.handover
        wish = np.where((wish == SPOT) & ~is_up & ~hands & (here != SPOT), IDLE, wish)
        boot = self._longest_boot(np.where(here == SPOT, self.machines.boot, np.where(hands, 0.0, self._start_seconds)))
        slack = remaining - (self.work + self.machines.unsaved) / self._harsh.pace
        # If a run leaves on-demand without a standby while spot is down, the run is idle until the next tick.
        is_sure = (wish == SPOT) & (hands | (here != ON_DEMAND) | (job.knowledge == "free"))
        risk = np.where(is_sure, self._spot_risk_seconds(boot), np.maximum(self._spot_risk_seconds(boot), self._tick))
        risk = risk + np.where(wish == SPOT, self._harsh.lost_by_a_death_seconds / self._harsh.pace, 0.0)
        allowed = clamp.permits(slack, risk_seconds=risk, on_demand_seconds=self._to_on_demand_seconds())
        allowed &= (here == SPOT) | (slack >= self._harsh.start_slack_seconds)
        self.has_standby = hands & allowed
        self.standby = np.where(self.has_standby & self.now, np.minimum(self.standby, self._start_seconds), np.inf)
        wish = np.where(hands | ~allowed, ON_DEMAND, wish)
        wish = np.where((wish == SPOT) & ~self.now, IDLE, wish)
        wish = np.where(self.machines.undetected > 0, here, wish)  # Its death was not detected yet.
        self.machines.undetected = np.maximum(self.machines.undetected - self._tick, 0.0)
        starts = (wish != here) & (wish != IDLE)
        self.machines.since_start[starts] = 0.0
        self.machines.boot = np.where(starts, self._start_seconds, np.where(wish == IDLE, 0.0, self.machines.boot))
        self.mode = wish.astype(np.int8)

    @property
    def _start_seconds(self) -> float:
        return self._job.changeover_seconds * self._harsh.start_factor

    def _to_on_demand_seconds(self) -> Floats:
        """Return the longest start of on-demand in seconds that the clamp expects.

        `policy.estimates` computes the corresponding value for a real run.
        """
        known = np.full(len(self.mode), self._job.changeover_seconds)
        if not self._job.has_start_margin:
            return known
        is_seen = self.totals.on_demand >= self._start_seconds
        return np.where(
            is_seen, np.maximum(known, SEEN_START_FACTOR * self._start_seconds), UNSEEN_START_FACTOR * known
        )

    def _longest_boot(self, left: Floats) -> Floats:
        """Return the longest remaining boot in seconds that the clamp expects.

        The clamp does not know the duration of the boot.
        """
        if not self._job.has_start_margin:
            return left
        more = UNSEEN_START_FACTOR * self._job.changeover_seconds - self._start_seconds
        return np.where(left > 0, np.maximum(left + more, 0.0), 0.0)

    def _spot_risk_seconds(self, boot: Floats) -> Floats:
        """Return the slack in seconds that a run can lose until the next decision.

        The loss is one boot. With `Harshness`, the loss is the whole tick.
        """
        harsh = self._harsh
        if not harsh.dies_within_tick and not harsh.detection_seconds and not harsh.save_every_seconds:
            return np.minimum(boot, self._tick)
        return np.full(len(boot), self._tick * (1 + np.ceil(harsh.detection_seconds / self._tick)))

    def _pass(self, at: int) -> None:
        """Simulate one tick."""
        tick, pace = self._tick, self._harsh.pace
        runs = (self.work > 0) & (self.mode != IDLE)
        booting = np.minimum(self.machines.boot, tick)
        used = np.where(runs, np.minimum(booting + self.work / pace, tick), 0.0)
        worked = np.where(runs, np.minimum(self.work, (tick - booting) * pace), 0.0)
        done = runs & (worked >= self.work - _NOTHING_SECONDS)
        self.totals.finished = np.where(done, at * tick + used, self.totals.finished)
        self.work = np.where(self.work - worked < _NOTHING_SECONDS, 0.0, self.work - worked)
        self.machines.just_worked, self.machines.unsaved_before = worked, self.machines.unsaved
        self.machines.since_start = self.machines.since_start + worked
        if self._harsh.save_every_seconds:
            unsaved = (self.machines.unsaved + worked) % self._harsh.save_every_seconds
            self.machines.unsaved = np.where(runs, unsaved, self.machines.unsaved)
        self.machines.boot = self.machines.boot - booting
        on_demand = runs & (self.mode == ON_DEMAND)
        standby = on_demand & np.isfinite(self.standby)
        overlap = np.where(standby, np.minimum(self.standby, used), used)
        self.totals.spot += np.where(standby | (runs & (self.mode == SPOT)), used, 0.0)
        self.totals.on_demand += np.where(on_demand, overlap, 0.0)
        moved = standby & (self.standby <= tick + 1e-9)
        self.mode[moved] = SPOT
        self.machines.since_start[moved] = 0.0
        self.machines.boot[moved] = 0.0
        self.standby = np.where(standby & ~moved, self.standby - tick, np.inf)
