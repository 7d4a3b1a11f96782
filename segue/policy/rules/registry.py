"""The rule of each policy, by the name that a run spec or a command line asks for. The module is pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segue.policies import checked_parameters
from segue.policy.rules.heuristics import (
    EagerProgress,
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

RULES: dict[str, type[Any]] = {
    rule.name: rule
    for rule in (
        *(Plan, SlackAge, UniformProgress, EagerProgress, Greedy),
        *(TimeSliced, Threshold, SpotOnly, OnDemandOnly),
    )
}
"""The rule class for each declaration in `segue.policies`.

The class has the parameters of the declaration, and chooses by them.
"""


def named_policy(name: str, parameters: Mapping[str, float] | None = None) -> Policy:
    """Return the policy with this name and these parameters.

    Raises:
        ValueError: there is no such policy, it has no such parameter, or the parameter cannot have this value.
    """
    checked = checked_parameters(name, parameters or {})
    policy: Policy = RULES[name](**checked)
    return policy
