"""Models of one name: the candidates that slots trained, which of them was in service when, and why."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, TypeAdapter

from segue.records import FiniteValue, Record
from segue.retraining.gate import GateResult
from segue.retraining.spec import Window


class Weights(FiniteValue):
    """Where the weights of a candidate are in the store."""

    key: str
    sha256: str
    size_bytes: int = Field(ge=0)


class Interval(FiniteValue):
    """A number with its 95 % interval from a bootstrap over rows."""

    value: float
    low: float
    high: float


class Comparison(FiniteValue):
    """A candidate and the model in service on the same rows, by one metric of which less is better."""

    metric: str
    candidate: Interval
    in_service: Interval | None = Field(None, description="None where no model was in service.")
    gain: Interval | None = Field(None, description="By how much the candidate is better, from pairs of rows.")
    groups: dict[str, float] = Field(
        default_factory=dict, description="The gain in each subgroup, e.g. carrier=AA; negative where it is worse."
    )


class Candidate(Record):
    """What is known of a model that a slot trained."""

    kind: Literal["candidate"] = "candidate"
    slot: AwareDatetime = Field(description="Time for which it was trained.")
    run_id: str
    step: int = Field(ge=0, description="Step of the run's checkpoint.")
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    weights: Weights
    window: Window
    gate: GateResult
    comparisons: tuple[Comparison, ...] = ()
    compared_with: int | None = Field(None, description="Version in service when it was evaluated.")
    is_promoted: bool
    why: str = Field(description="Why it was promoted, or not.")


class Choice(Record):
    """A person puts a version into service: an earlier one, or one that was not promoted."""

    kind: Literal["choice"] = "choice"
    version: int = Field(ge=1)
    why: str


ModelRecord = Annotated[Candidate | Choice, Field(discriminator="kind")]
RECORD: TypeAdapter[Candidate | Choice] = TypeAdapter(ModelRecord)
