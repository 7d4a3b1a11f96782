"""Defines the table `policy` of a run spec."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.policies import POLICIES, checked_parameters, declaration, declared_policy
from segue.records import FiniteValue


class PolicySpec(FiniteValue):
    """The rule that chooses between spot and on-demand, its parameters, and the limits for failed attempts.

    A field that is marked as prior applies until the run has measured the value itself.
    """

    name: str = Field(
        "plan",
        json_schema_extra={"enum": list(POLICIES)},
        description="Rule that chooses the capacity; docs/deadline.md describes which rule suits which run.",
    )
    parameters: dict[str, float] = Field(
        default_factory=dict, description="Parameters of the rule, e.g. preemptions = 3."
    )
    max_preemptions: int | None = Field(
        None,
        ge=0,
        description="Number of preemptions after which the run stays on on-demand, with any rule; None: no limit.",
    )
    max_wait_seconds: float | None = Field(
        None,
        gt=0,
        # Left out if it is not set: older versions refuse a record with a field that they do not know.
        exclude_if=lambda seconds: seconds is None,
        description="Longest time in seconds without a spot machine, after which a run without a deadline uses "
        "on-demand; None: no limit. With `handover`, the run moves back as soon as a spot machine has booted. If the "
        "run has a deadline, this value has no effect.",
    )
    handover: bool = Field(
        True,
        description="Whether the run may move from on-demand back to spot, and from a spot pool to a cheaper one. The "
        "running attempt trains until the new spot machine has booted. false: a move to on-demand is final.",
    )
    changeover_seconds: float = Field(
        120.0, ge=0, description="Prior: seconds from the end of one segment to the first new step of the next."
    )
    detection_seconds: float | None = Field(
        None,
        ge=0,
        description="Longest time in seconds until the parent detects that an attempt died without a report. None: the "
        "heartbeat timeout plus one heartbeat interval; for a remote store, plus the time between two reads.",
    )
    step_seconds: float | None = Field(
        None, gt=0, description="Prior: seconds per step; None: a short probe on spot measures the step time first."
    )
    probe_share: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="Share of the remaining time that spot probes may take while the step time is unknown.",
    )
    margin_share: float = Field(
        0.05, ge=0, le=1, description="Safety margin: share by which the estimate of the remaining work is increased."
    )
    max_failures: int = Field(
        2,
        ge=1,
        description="Number of attempts in which the user's code may raise at the same place before the run stops.",
    )
    max_transient_failures: int = Field(
        5,
        ge=1,
        description="Number of attempts that may fail because of a disk, a network or a worker process "
        "before the run "
        "stops; each is retried after a back-off.",
    )
    max_out_of_memory: int = Field(
        2, ge=1, description="Number of attempts that may run out of memory before the run stops."
    )
    max_hung: int = Field(
        2, ge=1, description="Number of attempts that may exceed the hang timeout before the run stops."
    )
    max_lost_in_place: int = Field(
        5, ge=1, description="Number of consecutive attempts that may be lost without a commit before the run stops."
    )

    @field_validator("name")
    @classmethod
    def _is_declared(cls, name: str) -> str:
        try:
            return declaration(name).name
        except ValueError as error:
            raise PydanticCustomError("policy_name", "{problem}", {"problem": str(error)}) from None

    @field_validator("parameters")
    @classmethod
    def _are_of_the_policy(cls, given: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        if "name" in info.data:  # A wrong name is reported separately.
            try:
                checked_parameters(info.data["name"], given)
            except ValueError as error:
                raise PydanticCustomError("policy_parameters", "{problem}", {"problem": str(error)}) from None
        return given

    @property
    def preemption_bound(self) -> int | None:
        """Number of preemptions after which the run stays on on-demand. The value None means no limit."""
        own = declared_policy(self.name, self.parameters).preemption_bound
        given = [bound for bound in (own, self.max_preemptions) if bound is not None]
        return min(given, default=None)
