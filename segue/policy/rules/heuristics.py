"""Defines policies that choose the next mode of a run by a fixed rule.

The module is pure. The safety clamp overrules all policies of this module. A run and the simulator use equal policy
objects. The method `choose` works element by element, on one run in a flow and on many runs in a simulation. If a
policy chooses spot while spot is down, the run waits for spot. With hand-over, on-demand keeps running during the wait
for spot.
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
    """Chooses the capacity that each run of a view uses from now on."""

    @property
    def comes_back(self) -> bool:
        """Whether the policy ever returns from on-demand to spot. Only a policy that returns uses standbys."""
        ...

    def choose(self, view: View) -> Wishes: ...


@dataclass(frozen=True)
class OnDemandOnly(OnDemandOnlyParameters):
    """Always uses on-demand. This policy is the safest, and its cost is the baseline."""

    def choose(self, view: View) -> Wishes:
        return np.full(view.mode.shape, ON_DEMAND, np.int8)


@dataclass(frozen=True)
class SpotOnly(SpotOnlyParameters):
    """Always uses spot. This policy has no safety-net rule of its own, but the safety clamp overrules the policy."""

    def choose(self, view: View) -> Wishes:
        return np.full(view.mode.shape, SPOT, np.int8)


@dataclass(frozen=True)
class Threshold(ThresholdParameters):
    """Moves to on-demand for the rest of the run after a number of preemptions, or if little slack is left.

    Many tutorials describe the threshold rule.
    """

    def choose(self, view: View) -> Wishes:
        is_short = view.slack_seconds < self.slack_share * view.remaining_seconds
        return _on_demand_if(_stays(view) | (view.preemptions >= self.preemptions) | is_short)


@dataclass(frozen=True)
class Greedy(GreedyParameters):
    """Uses spot until the safety-net rule applies (idle and R < C + 2d), and then on-demand to the end (NSDI 2024)."""

    def choose(self, view: View) -> Wishes:
        return _on_demand_if(_stays(view) | ((view.mode == IDLE) & _is_net_reached(view)))


@dataclass(frozen=True)
class TimeSliced(TimeSlicedParameters):
    """Applies the greedy policy within each of several equal slices of the time.

    Each slice of the time has its share of the work (NSDI 2024, 4.2).
    """

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
    """Keeps the completed work at or above the straight line from the start to the deadline (NSDI 2024, 5.2.2).

    If an idle run is behind the line, the policy chooses spot if spot is available, and otherwise on-demand. The policy
    keeps on-demand until the run is ahead of the line by two changeovers (the hysteresis, rule 3). The policy keeps
    spot until a preemption. It has the safety-net rule of the greedy policy.
    """

    def choose(self, view: View) -> Wishes:
        is_behind, is_kept = _against_the_line(view)
        return _on_demand_if((is_behind & ~view.is_up) | is_kept | ((view.mode != SPOT) & _is_net_reached(view)))


@dataclass(frozen=True)
class EagerProgress(EagerProgressParameters):
    """Follows Uniform Progress, but without the hysteresis while spot is available.

    The policy moves from on-demand to spot at any time.
    """

    def choose(self, view: View) -> Wishes:
        is_behind, is_kept = _against_the_line(view)
        return _on_demand_if(((is_behind | is_kept) & ~view.is_up) | ((view.mode != SPOT) & _is_net_reached(view)))


@dataclass(frozen=True)
class SlackAge(SlackAgeParameters):
    """Waits for spot while the expected rest of the down interval is at most a share of the slack.

    The policy moves from on-demand to spot if the expected rest of the up interval pays for the changeover.
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
    """Follows another policy up to a number of preemptions, and then uses on-demand to the end."""

    policy: Policy
    preemptions: int = 3

    @property
    def comes_back(self) -> bool:
        return self.policy.comes_back

    def choose(self, view: View) -> Wishes:
        capped = view.preemptions >= self.preemptions
        return np.where(capped, ON_DEMAND, self.policy.choose(view))


def _against_the_line(view: View) -> tuple[Flags, Flags]:
    """Compare the progress of runs with the straight line from the start to the deadline.

    Return whether an idle run is behind the line, and whether a run on on-demand is less than two changeovers ahead of
    the line.
    """
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
