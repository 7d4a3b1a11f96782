"""Policies with closed rules, which say where a run should be next. Pure; the safety clamp overrules them all.

The same objects decide in a run and in the simulator. `choose` works element by element: one run in a flow, many in a
simulation. A wish for spot while spot is down means to wait for it; with hand-over, on-demand keeps running meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from segue.policies import (
    EagerProgressParameters,
    GreedyParameters,
    OnDemandOnlyParameters,
    SlackAgeParameters,
    SpotOnlyParameters,
    ThresholdParameters,
    TimeSlicedParameters,
    UniformProgressParameters,
)
from segue.policy.rules.hazards import mean_left_seconds
from segue.policy.rules.view import IDLE, ON_DEMAND, SPOT, Flags, View, Wishes


class Policy(Protocol):
    """Chooses the capacity from now on, for each run of a view."""

    @property
    def comes_back(self) -> bool:
        """Whether the policy ever leaves on-demand for spot again; only then is a standby sent."""
        ...

    def choose(self, view: View) -> Wishes: ...


@dataclass(frozen=True)
class OnDemandOnly(OnDemandOnlyParameters):
    """On-demand always: the safest, and the baseline in cost."""

    def choose(self, view: View) -> Wishes:
        return np.full(view.mode.shape, ON_DEMAND, np.int8)


@dataclass(frozen=True)
class SpotOnly(SpotOnlyParameters):
    """Spot always: it has no safety net of its own, but the clamp still overrules it."""

    def choose(self, view: View) -> Wishes:
        return np.full(view.mode.shape, SPOT, np.int8)


@dataclass(frozen=True)
class Threshold(ThresholdParameters):
    """The rule of many tutorials: on-demand to the end after some preemptions, or with little slack left."""

    def choose(self, view: View) -> Wishes:
        is_short = view.slack_seconds < self.slack_share * view.remaining_seconds
        return _on_demand_if(_stays(view) | (view.preemptions >= self.preemptions) | is_short)


@dataclass(frozen=True)
class Greedy(GreedyParameters):
    """Spot until the safety net (idle and R < C + 2d), then on-demand to the end ("Can't Be Late", NSDI 2024)."""

    def choose(self, view: View) -> Wishes:
        return _on_demand_if(_stays(view) | ((view.mode == IDLE) & _is_net_reached(view)))


@dataclass(frozen=True)
class TimeSliced(TimeSlicedParameters):
    """Greedy within each of some equal slices of the time, each with its share of the work (NSDI 2024, 4.2)."""

    def choose(self, view: View) -> Wishes:
        job = view.job
        length = job.total_seconds / self.slices
        gone = job.total_seconds - view.remaining_seconds
        now = np.minimum(np.floor(gone / length), self.slices - 1)
        to_end = (now + 1) * length - gone
        due = job.work_seconds * (now + 1) / self.slices - (job.work_seconds - view.work_seconds)
        behind = (due > 0) & (_stays(view) | ((view.mode == IDLE) & (to_end < due + 2 * job.changeover_seconds)))
        return _on_demand_if(behind | ((view.mode == IDLE) & _is_net_reached(view)))


@dataclass(frozen=True)
class UniformProgress(UniformProgressParameters):
    """Keeps the work done at or above the straight line from start to deadline (NSDI 2024, 5.2.2).

    Idle and behind the line: spot if it is available, else on-demand. On-demand is kept until ahead of the line by two
    changeovers (the hysteresis, rule 3), spot until preempted. The safety net is that of greedy.
    """

    def choose(self, view: View) -> Wishes:
        is_behind, is_kept = _against_the_line(view)
        return _on_demand_if((is_behind & ~view.is_up) | is_kept | ((view.mode != SPOT) & _is_net_reached(view)))


@dataclass(frozen=True)
class EagerProgress(EagerProgressParameters):
    """Uniform Progress without the hysteresis while spot is available: on-demand is left for spot at any time."""

    def choose(self, view: View) -> Wishes:
        is_behind, is_kept = _against_the_line(view)
        return _on_demand_if(((is_behind | is_kept) & ~view.is_up) | ((view.mode != SPOT) & _is_net_reached(view)))


@dataclass(frozen=True)
class SlackAge(SlackAgeParameters):
    """A closed form: waits for spot while the expected rest of the down interval is within a share of the slack.

    From on-demand it takes spot once the expected rest of the up interval pays for the changeover.
    """

    def choose(self, view: View) -> Wishes:
        job = view.job
        up_left, down_left = mean_left_seconds(view.age_seconds)
        is_long = ~view.is_up & (view.mode == IDLE) & (down_left > self.wait_share * view.slack_seconds)
        saved = up_left * (1 - 1 / job.price_ratio)
        is_short = view.is_up & (saved < self.pays_for * job.changeover_seconds)
        is_kept = _stays(view) & (~view.is_up | is_short)
        return _on_demand_if(is_long | is_kept | ((view.mode != SPOT) & _is_net_reached(view)))


@dataclass(frozen=True)
class Capped:
    """Another policy until the preemptions reach a bound, then on-demand to the end."""

    policy: Policy
    preemptions: int = 3

    @property
    def comes_back(self) -> bool:
        return self.policy.comes_back

    def choose(self, view: View) -> Wishes:
        capped = view.preemptions >= self.preemptions
        return np.where(capped, ON_DEMAND, self.policy.choose(view))


def _against_the_line(view: View) -> tuple[Flags, Flags]:
    """Whether an idle run is behind the line, and whether one on on-demand is less than two changeovers ahead of it."""
    job = view.job
    done = job.work_seconds - view.work_seconds
    gone = job.total_seconds - view.remaining_seconds
    slope = job.work_seconds / job.total_seconds
    is_behind = (view.mode == IDLE) & (done < slope * gone)
    return is_behind, _stays(view) & (done < slope * (gone + 2 * job.changeover_seconds))


def _on_demand_if(there: Flags) -> Wishes:
    return np.where(there, ON_DEMAND, SPOT)


def _stays(view: View) -> Flags:
    return np.asarray(view.mode == ON_DEMAND)


def _is_net_reached(view: View) -> Flags:
    return np.asarray(view.slack_seconds < 2 * view.job.changeover_seconds)
