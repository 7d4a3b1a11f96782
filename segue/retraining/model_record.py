"""Defines the records of a model's log: slots of the schedule, their candidates, and changes of the version in
service.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue, TypeAdapter

from segue.records import FiniteValue, Record
from segue.retraining.gate.record import GateResult
from segue.retraining.spec import RegistrySpec, Window
from segue.spec import RunSpec


class Artifact(FiniteValue):
    """A file of a version in the store."""

    key: str
    sha256: str
    size_bytes: int = Field(ge=0)


class Interval(FiniteValue):
    """A number with its 95 % interval from a bootstrap over rows."""

    value: float
    low: float
    high: float


class LeftOut(FiniteValue):
    """Rows of an evaluation without a finite score. The means of both models ignore these rows."""

    candidate: int = Field(
        0, ge=0, description="Rows in which only the candidate has no finite score, which count against the candidate."
    )
    in_service: int = Field(0, ge=0, description="Rows in which only the other model has no finite score.")
    both: int = Field(0, ge=0, description="Rows in which neither model has a finite score.")
    first: tuple[int, ...] = Field((), description="The first of these rows, counted from 1.")

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.candidate + self.in_service + self.both


class Comparison(FiniteValue):
    """The comparison of a candidate with the model in service on the same rows, by one metric.

    A lower value means a better model.
    """

    metric: str
    candidate: Interval | None = Field(description="Mean of the candidate; None if no row could be compared.")
    in_service: Interval | None = Field(
        None, description="Mean of the model in service; None if there was none, or no row could be compared."
    )
    gain: Interval | None = Field(None, description="Gain of the candidate as a share, from paired rows.")
    left_out: LeftOut = Field(LeftOut(), exclude_if=lambda rows: not rows.count)
    groups: dict[str, float] = Field(
        default_factory=dict,
        description="Gain of the candidate in each subgroup, e.g. carrier=AA; negative: the candidate is worse.",
    )
    # Left out if there are none: older versions refuse a record with a field that they do not know.
    group_rows: dict[str, int] = Field(
        default_factory=dict,
        exclude_if=lambda rows: not rows,
        description="Number of rows of each subgroup, including subgroups that were not compared.",
    )
    group_notes: tuple[str, ...] = Field(
        (),
        exclude_if=lambda notes: not notes,
        description="Sentences about subgroups that are new, missing, or have too few rows.",
    )

    @property
    def value(self) -> float | None:
        """The candidate's mean. The value is None if no row could be compared."""
        return self.candidate.value if self.candidate is not None else None

    @property
    def value_in_words(self) -> str:
        """The candidate's mean in four digits."""
        return f"{self.candidate.value:.4g}" if self.candidate is not None else "not finite"


class Training(FiniteValue):
    """Figures about the training of a candidate, for its card."""

    segments: int = Field(ge=0)
    preemptions: int = Field(ge=0)
    verdicts: dict[str, int] = Field(default_factory=dict, description="Number of resumes by verdict.")
    cost: float = Field(ge=0)
    currency: str = ""
    saved_share: float | None = Field(None, description="Savings as a share of the cost on on-demand alone.")
    late_seconds: float | None = Field(
        None, description="Delay after the deadline; negative if the run was early; None if there is no deadline."
    )
    hashes: dict[str, str] = Field(default_factory=dict, description="Hashes of the training code and configuration.")


class SlotStart(Record):
    """The beginning of a slot: the slot's window, the result of the data check, and the run to train."""

    kind: Literal["slot"] = "slot"
    slot: AwareDatetime = Field(description="Time for which the slot trains.")
    window: Window
    changes: tuple[str, ...] = Field((), description="Differences from the previous window, in sentences.")
    gate: GateResult
    docs: str | None = Field(None, description="Folder of the check's Data Docs in the store.")
    run: RunSpec | None = Field(None, description="Run spec of the slot; None if the data did not pass the gate.")
    start_version: int | None = Field(
        None, description="Version whose weights are the run's first weights; None: from scratch."
    )


SlotOutcome = Literal[
    "promoted", "not_promoted", "data_gate", "no_data", "failed", "cancelled", "skipped", "superseded"
]
IN_WORDS: dict[SlotOutcome, str] = {
    "promoted": "promoted",
    "not_promoted": "not promoted",
    "data_gate": "data refused",
    "no_data": "no data",
    "failed": "failed",
    "cancelled": "cancelled",
    "skipped": "skipped",
    "superseded": "superseded",
}
DONE: tuple[SlotOutcome, ...] = ("promoted", "not_promoted")
"""The outcomes of slots that trained a candidate. After any other outcome, the slot may run again."""


class SlotEnd(Record):
    """The outcome of a slot."""

    kind: Literal["slot_end"] = "slot_end"
    slot: AwareDatetime
    outcome: SlotOutcome
    why: str


class Candidate(Record):
    """The record of a model that a slot trained."""

    kind: Literal["candidate"] = "candidate"
    slot: AwareDatetime = Field(description="Slot that trained the candidate.")
    run_id: str
    step: int = Field(ge=0, description="Step of the run's checkpoint.")
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    weights: Artifact = Field(description="The state dict as a safetensors file.")
    program: Artifact | None = Field(None, description="The model as a program of torch.export.")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Configuration of the run.")
    training: Training = Training(segments=0, preemptions=0, cost=0)
    comparisons: tuple[Comparison, ...] = ()
    compared_with: int | None = Field(None, description="Version in service at the evaluation.")
    is_promoted: bool
    why: str = Field(description="Reason for the promotion, or against it.")
    registry: RegistrySpec | None = Field(None, description="Model registry that mirrors the version.")
    # Left out if no person is asked: older versions refuse a record with a field that they do not know.
    decide_by: AwareDatetime | None = Field(
        None,
        exclude_if=lambda moment: moment is None,
        description="Time until which a person may approve the promotion; None if no person is asked.",
    )


class Choice(Record):
    """A person's choice of the version in service: an earlier version, or one that was not promoted."""

    kind: Literal["choice"] = "choice"
    version: int = Field(ge=1)
    why: str


Answer = Literal["approved", "rejected", "expired"]


class Decision(Record):
    """The answer about a candidate that waited for a decision.

    The record promotes or rejects the candidate, and ends the candidate's slot.
    """

    kind: Literal["decision"] = "decision"
    version: int = Field(ge=1)
    answer: Answer = Field(description="`expired`: no person has answered in time.")
    by: str = Field("", description="Name of the person who decided; empty if no person did.")
    why: str

    @property
    def sentence(self) -> str:
        """A sentence with the decision, the person who made it, and the reason."""
        return f"{self.answer} by {self.by}: {self.why}" if self.by else self.why


Cause = Literal["arrival", "drift"]


class Trigger(Record):
    """The request for a slot, because data has arrived or data in service has drifted.

    Each `key` has at most one slot.
    """

    kind: Literal["trigger"] = "trigger"
    slot: AwareDatetime
    cause: Cause
    key: str = Field(description="Hash of the cause. If two checks find the same files, their hashes are equal.")
    why: str


ModelRecord = Annotated[SlotStart | SlotEnd | Candidate | Choice | Decision | Trigger, Field(discriminator="kind")]
RECORD: TypeAdapter[SlotStart | SlotEnd | Candidate | Choice | Decision | Trigger] = TypeAdapter(ModelRecord)
