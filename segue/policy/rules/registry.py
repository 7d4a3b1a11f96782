"""Maps the name of each policy in a run spec or a command to its rule. The module is pure."""

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

A rule class inherits the parameters of its declaration and uses them to choose the capacity.
"""


def named_policy(name: str, parameters: Mapping[str, float] | None = None) -> Policy:
    """Return the policy with this name and these parameters.

    Raises:
        ValueError: the policy or the parameter does not exist, or the value of the parameter is invalid.
    """
    checked = checked_parameters(name, parameters or {})
    policy: Policy = RULES[name](**checked)
    return policy
