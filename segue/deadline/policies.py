"""Policies: which capacity next. Values with one method, pure; the clamp overrules them all."""

from __future__ import annotations

from typing import Protocol

from segue.deadline.estimates import Situation
from segue.records import Capacity


class Policy(Protocol):
    """Chooses capacity for the next segment, from idle."""

    def choose(self, now: Situation) -> Capacity: ...


class OnDemandOnly:
    """The baseline in cost and the safest."""

    def choose(self, now: Situation) -> Capacity:
        return Capacity.ON_DEMAND


class SpotOnly:
    """The baseline without a safety net; the clamp still overrules it when there is a deadline."""

    def choose(self, now: Situation) -> Capacity:
        return Capacity.SPOT


class Greedy:
    """Spot until the safety net: idle and R < C + 2d, then on-demand to the end ("Can't Be Late", NSDI 2024)."""

    def choose(self, now: Situation) -> Capacity:
        slack = now.slack_seconds
        if slack is None:
            return Capacity.SPOT
        return Capacity.ON_DEMAND if slack < 2 * now.changeover_seconds else Capacity.SPOT


POLICIES: dict[str, Policy] = {"greedy": Greedy(), "on_demand_only": OnDemandOnly(), "spot_only": SpotOnly()}
