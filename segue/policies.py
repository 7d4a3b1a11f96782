"""Declares each policy: its name, its parameters, and whether it returns from on-demand to spot.

The run spec checks the names and the parameters of policies against these declarations. `segue.policy.rules` contains
the rule by which each policy chooses. A new policy needs one class here and one rule in `segue.policy.rules.registry`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class PolicyParameters:
    """The declaration of one policy. Each field is a parameter of the policy, with its default."""

    name: ClassVar[str]
    comes_back: ClassVar[bool] = False
    """Whether the policy can move a run from on-demand back to spot. If it cannot, it uses no standbys."""
    as_published: ClassVar[bool] = True
    """Whether comparisons run the policy as published: it always observes spot, and there is no hand-over."""

    @property
    def preemption_bound(self) -> int | None:
        """Number of preemptions after which the policy stays on on-demand. If there is no limit, the value is None."""
        return None


@dataclass(frozen=True)
class PlanParameters(PolicyParameters):
    """This policy minimizes the expected cost over the possible futures of spot, by dynamic programming."""

    name: ClassVar[str] = "plan"
    comes_back: ClassVar[bool] = True
    as_published: ClassVar[bool] = False

    prior_weight: float = 16.0
    """The weight of the published hazards, as a number of ended intervals.

    Each ended interval of the run has the weight 1.
    """
    reach: float = field(default=4.0, metadata={"least": 1.0})
    """The largest factor by which a run's own hazards may differ from the published hazards."""


@dataclass(frozen=True)
class SlackAgeParameters(PolicyParameters):
    """This policy waits for spot while the expected remaining wait fits into the slack.

    The policy estimates the remaining wait from the age of the down interval.
    """

    name: ClassVar[str] = "slack_age"
    comes_back: ClassVar[bool] = True
    as_published: ClassVar[bool] = False

    wait_share: float = 1.0
    """Share of the slack that the expected remaining wait may use."""
    pays_for: float = 3.0
    """The policy leaves on-demand for spot only if an up interval saves at least this number of changeover delays."""


@dataclass(frozen=True)
class UniformProgressParameters(PolicyParameters):
    """This policy keeps the completed work at or above the straight line from start to deadline (NSDI 2024)."""

    name: ClassVar[str] = "uniform_progress"
    comes_back: ClassVar[bool] = True


@dataclass(frozen=True)
class EagerProgressParameters(PolicyParameters):
    """This policy follows uniform progress, but moves back to spot as soon as spot is available.

    The policy moves even if the completed work is below the line.
    """

    name: ClassVar[str] = "eager_progress"
    comes_back: ClassVar[bool] = True


@dataclass(frozen=True)
class GreedyParameters(PolicyParameters):
    """This policy uses spot until the slack is less than two changeover delays (NSDI 2024).

    The policy then uses on-demand to the end.
    """

    name: ClassVar[str] = "greedy"


@dataclass(frozen=True)
class TimeSlicedParameters(PolicyParameters):
    """This policy divides the time into equal slices and applies the greedy policy in each slice (NSDI 2024)."""

    name: ClassVar[str] = "time_sliced"
    comes_back: ClassVar[bool] = True

    slices: int = 4


@dataclass(frozen=True)
class ThresholdParameters(PolicyParameters):
    """This policy uses spot until a number of preemptions has been reached, or until little slack is left.

    The policy then uses on-demand to the end.
    """

    name: ClassVar[str] = "threshold"

    preemptions: int = 3
    slack_share: float = 0.1
    """If the slack is below this share of the remaining time, the run moves to on-demand."""

    @property
    def preemption_bound(self) -> int | None:
        return self.preemptions


@dataclass(frozen=True)
class SpotOnlyParameters(PolicyParameters):
    """This policy always uses spot, so that only the safety clamp moves the run to on-demand."""

    name: ClassVar[str] = "spot_only"


@dataclass(frozen=True)
class OnDemandOnlyParameters(PolicyParameters):
    """This policy always uses on-demand. Its cost is the baseline for other policies."""

    name: ClassVar[str] = "on_demand_only"


POLICIES: dict[str, type[PolicyParameters]] = {
    declared.name: declared
    for declared in (
        PlanParameters,
        SlackAgeParameters,
        UniformProgressParameters,
        EagerProgressParameters,
        GreedyParameters,
        TimeSlicedParameters,
        ThresholdParameters,
        SpotOnlyParameters,
        OnDemandOnlyParameters,
    )
}
"""All policies by name. The default policy is the first."""


def declaration(name: str) -> type[PolicyParameters]:
    """Return the declaration of a policy.

    Raises:
        ValueError: no policy has this name. The message lists the existing policies.
    """
    if name not in POLICIES:
        raise ValueError(f"no such policy; known are {', '.join(POLICIES)}")
    return POLICIES[name]


def checked_parameters(name: str, given: Mapping[str, float]) -> dict[str, Any]:
    """Return the given parameters of a policy, converted to their types.

    Raises:
        ValueError: the policy does not exist, lacks a parameter, or does not permit a value.
    """
    known = {item.name: item for item in fields(declaration(name))}
    checked: dict[str, Any] = {}
    for parameter, value in given.items():
        if parameter not in known:
            raise ValueError(f"{name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
        kind = int if isinstance(known[parameter].default, int) else float
        if not math.isfinite(value) or value <= 0 or (kind is int and value != int(value)):
            raise ValueError(f"{parameter} of {name} must be a positive {kind.__name__} (got {value:g})")
        least = known[parameter].metadata.get("least")
        if least is not None and value < least:
            raise ValueError(f"{parameter} of {name} must be at least {least:g} (got {value:g})")
        checked[parameter] = kind(value)
    return checked


def declared_policy(name: str, given: Mapping[str, float]) -> PolicyParameters:
    """Return a policy's parameters: the given values, and the defaults of all other parameters.

    Raises:
        ValueError: `checked_parameters` refuses the policy or a parameter.
    """
    return declaration(name)(**checked_parameters(name, given))
