"""Policies by name, as a run spec or a command line asks for them. Pure."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from segue.policy.rules.heuristics import (
    Greedy,
    OnDemandOnly,
    Policy,
    SlackAge,
    SpotOnly,
    Threshold,
    TimeSliced,
    UniformProgress,
)
from segue.policy.rules.plan import Plan

POLICIES: dict[str, type[Any]] = {
    "on_demand_only": OnDemandOnly,
    "spot_only": SpotOnly,
    "threshold": Threshold,
    "greedy": Greedy,
    "time_sliced": TimeSliced,
    "uniform_progress": UniformProgress,
    "slack_age": SlackAge,
    "plan": Plan,
}


def named_policy(name: str, parameters: dict[str, float] | None = None) -> Policy:
    """The policy of a name, with its parameters.

    Raises:
        ValueError: it has no such parameter, or not with such a value; the message names those it has.
    """
    kind, given = POLICIES[name], parameters or {}
    own = [item for item in fields(kind) if item.init]
    known: dict[str, type] = {item.name: int if isinstance(item.default, int) else float for item in own}
    for parameter, value in given.items():
        if parameter not in known:
            raise ValueError(f"{name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
        if not math.isfinite(value) or value <= 0 or (known[parameter] is int and value != int(value)):
            raise ValueError(f"{parameter} of {name} must be a positive {known[parameter].__name__} (got {value:g})")
    if given.get("reach", 1.0) < 1:
        raise ValueError(
            f"reach of {name} must be at least 1, for a run's hazards that are as published (got {given['reach']:g})"
        )
    policy: Policy = kind(**{parameter: known[parameter](value) for parameter, value in given.items()})
    return policy
