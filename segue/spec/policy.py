"""The table `policy` of a run spec."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.policies import POLICIES, checked_parameters, declaration, declared_policy
from segue.records import FiniteValue


class PolicySpec(FiniteValue):
    """When to leave spot, and when to come back. Priors are used until the run has measured its own values."""

    name: str = Field(
        "plan",
        json_schema_extra={"enum": list(POLICIES)},
        description="Rule that picks the capacity; docs/deadline.md describes when each is right.",
    )
    parameters: dict[str, float] = Field(default_factory=dict, description="Parameters of that rule: preemptions = 3.")
    max_preemptions: int | None = Field(
        None, ge=0, description="Preemptions after which on-demand does the rest, with any rule; None: no bound."
    )
    handover: bool = Field(
        True,
        description="Keep on-demand running while a replacement spot machine is awaited and boots, then move the run "
        "there; false: on-demand does the rest once it was chosen.",
    )
    changeover_seconds: float = Field(
        120.0, ge=0, description="Prior: seconds from the end of one segment to the first new step of the next."
    )
    detection_seconds: float | None = Field(
        None,
        ge=0,
        description="Longest time until a silent death is noticed; None: the heartbeat timeout plus one heartbeat, "
        "or plus the time between two looks into a remote store.",
    )
    step_seconds: float | None = Field(
        None, gt=0, description="Prior: seconds per step; None: a short probe on spot measures it first."
    )
    probe_share: float = Field(
        0.1, gt=0, le=0.5, description="Share of the time to the deadline that unmeasured probes may use."
    )
    margin_share: float = Field(
        0.05, ge=0, le=1, description="Safety margin: share by which the remaining work is overestimated."
    )
    max_failures: int = Field(
        2, ge=1, description="Attempts in which the user's code may raise at the same place before the run stops."
    )
    max_transient_failures: int = Field(
        5, ge=1, description="The same for errors of disk, network and worker processes, retried after a back-off."
    )
    max_out_of_memory: int = Field(2, ge=1, description="The same for attempts that ran out of memory.")
    max_hung: int = Field(2, ge=1, description="The same for attempts that made no step within the hang timeout.")
    max_lost_in_place: int = Field(
        5, ge=1, description="Attempts in a row that may die without a commit before the run stops as hopeless."
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
        if "name" in info.data:  # A wrong name is a problem of its own.
            try:
                checked_parameters(info.data["name"], given)
            except ValueError as error:
                raise PydanticCustomError("policy_parameters", "{problem}", {"problem": str(error)}) from None
        return given

    @property
    def preemption_bound(self) -> int | None:
        """Preemptions after which on-demand does the rest; None: no bound."""
        own = declared_policy(self.name, self.parameters).preemption_bound
        given = [bound for bound in (own, self.max_preemptions) if bound is not None]
        return min(given, default=None)
