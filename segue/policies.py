"""The declaration of each policy: its name, its parameters, and whether it returns from on-demand to spot.

The run spec checks names and parameters against these declarations. `segue.policy.rules` has the rule by which each
policy chooses. A new policy needs one class here and one rule in `segue.policy.rules.registry`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class PolicyParameters:
    """The declaration of one policy. Its fields are its parameters, with their defaults."""

    name: ClassVar[str]
    comes_back: ClassVar[bool] = False
    """Whether the policy can move a run from on-demand back to spot; only such a policy uses standbys."""
    as_published: ClassVar[bool] = True
    """Whether comparisons run the policy as in its publication: it always observes spot, and there is no hand-over."""

    @property
    def preemption_bound(self) -> int | None:
        """Number of preemptions after which the policy stays on on-demand; None: no limit."""
        return None


@dataclass(frozen=True)
class PlanParameters(PolicyParameters):
    """Chooses the lowest expected cost over the possible futures of spot, by dynamic programming."""

    name: ClassVar[str] = "plan"
    comes_back: ClassVar[bool] = True
    as_published: ClassVar[bool] = False

    prior_weight: float = 16.0
    """Weight of the published hazards, as a number of ended intervals; the run's own ended intervals count 1 each."""
    reach: float = field(default=4.0, metadata={"least": 1.0})
    """The largest factor by which a run's own hazards may differ from the published ones."""


@dataclass(frozen=True)
class SlackAgeParameters(PolicyParameters):
    """Waits for spot while the remaining wait, estimated from the age of the down interval, fits into the slack."""

    name: ClassVar[str] = "slack_age"
    comes_back: ClassVar[bool] = True
    as_published: ClassVar[bool] = False

    wait_share: float = 1.0
    """Share of the slack that the expected remaining wait may take."""
    pays_for: float = 3.0
    """Number of changeover delays that an up interval must save, so that the policy leaves on-demand for it."""


@dataclass(frozen=True)
class UniformProgressParameters(PolicyParameters):
    """Keeps the work done at or above the straight line from start to deadline (NSDI 2024)."""

    name: ClassVar[str] = "uniform_progress"
    comes_back: ClassVar[bool] = True


@dataclass(frozen=True)
class EagerProgressParameters(PolicyParameters):
    """Uniform progress, but the run leaves on-demand as soon as spot is available, even if it is behind the line."""

    name: ClassVar[str] = "eager_progress"
    comes_back: ClassVar[bool] = True


@dataclass(frozen=True)
class GreedyParameters(PolicyParameters):
    """Uses spot until the slack is less than two changeover delays, then on-demand to the end (NSDI 2024)."""

    name: ClassVar[str] = "greedy"


@dataclass(frozen=True)
class TimeSlicedParameters(PolicyParameters):
    """Divides the time into equal slices and applies the greedy policy in each slice (NSDI 2024)."""

    name: ClassVar[str] = "time_sliced"
    comes_back: ClassVar[bool] = True

    slices: int = 4


@dataclass(frozen=True)
class ThresholdParameters(PolicyParameters):
    """Uses spot until a number of preemptions is reached or little slack is left, then on-demand to the end."""

    name: ClassVar[str] = "threshold"

    preemptions: int = 3
    slack_share: float = 0.1
    """The run moves to on-demand if the slack is below this share of the remaining time."""

    @property
    def preemption_bound(self) -> int | None:
        return self.preemptions


@dataclass(frozen=True)
class SpotOnlyParameters(PolicyParameters):
    """Always uses spot; only the safety clamp moves the run to on-demand."""

    name: ClassVar[str] = "spot_only"


@dataclass(frozen=True)
class OnDemandOnlyParameters(PolicyParameters):
    """Always uses on-demand; the baseline of the cost."""

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
"""All policies by name, the default first."""


def declaration(name: str) -> type[PolicyParameters]:
    """The declaration of a policy.

    Raises:
        ValueError: no policy has this name; the message lists the existing policies.
    """
    if name not in POLICIES:
        raise ValueError(f"no such policy; known are {', '.join(POLICIES)}")
    return POLICIES[name]


def checked_parameters(name: str, given: Mapping[str, float]) -> dict[str, Any]:
    """The parameters given for a policy, each in its own type.

    Raises:
        ValueError: the policy does not exist, has no such parameter, or does not permit the value.
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
    """A policy's parameters: the given ones, and the defaults of the others.

    Raises:
        ValueError: as for `checked_parameters`.
    """
    return declaration(name)(**checked_parameters(name, given))
