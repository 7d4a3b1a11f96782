"""Records of a model's log: the slots of its schedule, the candidates they trained, and which was in service when."""

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
    """Rows of an evaluation without a finite number, which are left out of the means of both models."""

    candidate: int = Field(0, ge=0, description="Rows in which the candidate alone has none. They count against it.")
    in_service: int = Field(0, ge=0, description="Rows in which the model in service alone has none.")
    both: int = Field(0, ge=0, description="Rows in which neither has one.")
    first: tuple[int, ...] = Field((), description="The first of these rows, counted from 1.")

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.candidate + self.in_service + self.both


class Comparison(FiniteValue):
    """A candidate and the model in service on the same rows, by one metric of which less is better."""

    metric: str
    candidate: Interval | None = Field(description="None if no row could be compared.")
    in_service: Interval | None = Field(
        None, description="None if no model was in service, or no row could be compared."
    )
    gain: Interval | None = Field(None, description="By how much the candidate is better, from pairs of rows.")
    left_out: LeftOut = Field(LeftOut(), exclude_if=lambda rows: not rows.count)
    groups: dict[str, float] = Field(
        default_factory=dict, description="The gain in each subgroup, e.g. carrier=AA; negative if it is worse."
    )
    # Left out if there are none: older versions refuse a record with a field that they do not know.
    group_rows: dict[str, int] = Field(
        default_factory=dict,
        exclude_if=lambda rows: not rows,
        description="Rows of each subgroup, also if it was not compared.",
    )
    group_notes: tuple[str, ...] = Field(
        (),
        exclude_if=lambda notes: not notes,
        description="Subgroups that are new, gone, or have too few rows, in sentences.",
    )

    @property
    def value(self) -> float | None:
        """The candidate's mean; None if no row could be compared."""
        return self.candidate.value if self.candidate is not None else None

    @property
    def value_in_words(self) -> str:
        """The candidate's mean in four digits."""
        return f"{self.candidate.value:.4g}" if self.candidate is not None else "not finite"


class Training(FiniteValue):
    """How a candidate was trained, in numbers for its card."""

    segments: int = Field(ge=0)
    preemptions: int = Field(ge=0)
    verdicts: dict[str, int] = Field(default_factory=dict, description="Number of resumes by verdict.")
    cost: float = Field(ge=0)
    currency: str = ""
    saved_share: float | None = Field(None, description="Saved share of the cost on on-demand alone.")
    late_seconds: float | None = Field(None, description="Negative when early; None without a deadline.")
    hashes: dict[str, str] = Field(default_factory=dict, description="Hashes of the training code and configuration.")


class SlotStart(Record):
    """The beginning of a slot: its window, the result of its check, and the run to train."""

    kind: Literal["slot"] = "slot"
    slot: AwareDatetime = Field(description="Time for which the slot trains.")
    window: Window
    changes: tuple[str, ...] = Field((), description="What is different from the window before, in sentences.")
    gate: GateResult
    docs: str | None = Field(None, description="Folder of its Data Docs in the store.")
    run: RunSpec | None = Field(None, description="None if the data did not pass.")
    start_version: int | None = Field(
        None, description="Version whose weights the run begins with; None: from scratch."
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
"""Outcomes of slots that trained a candidate. A slot with another outcome runs again when it is started again."""


class SlotEnd(Record):
    """The outcome of a slot."""

    kind: Literal["slot_end"] = "slot_end"
    slot: AwareDatetime
    outcome: SlotOutcome
    why: str


class Candidate(Record):
    """What is known of a model that a slot trained."""

    kind: Literal["candidate"] = "candidate"
    slot: AwareDatetime = Field(description="Time for which it was trained.")
    run_id: str
    step: int = Field(ge=0, description="Step of the run's checkpoint.")
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    weights: Artifact = Field(description="Its state dict as safetensors.")
    program: Artifact | None = Field(None, description="The model as a program of torch.export.")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Configuration of its run.")
    training: Training = Training(segments=0, preemptions=0, cost=0)
    comparisons: tuple[Comparison, ...] = ()
    compared_with: int | None = Field(None, description="Version in service when it was evaluated.")
    is_promoted: bool
    why: str = Field(description="Why it was promoted, or not.")
    registry: RegistrySpec | None = Field(None, description="Registry that mirrors it.")
    # Left out if nobody is asked: older versions refuse a record with a field that they do not know.
    decide_by: AwareDatetime | None = Field(
        None,
        exclude_if=lambda moment: moment is None,
        description="Until when a person may approve its promotion; None: nobody is asked.",
    )


class Choice(Record):
    """A person puts a version into service: an earlier one, or one that was not promoted."""

    kind: Literal["choice"] = "choice"
    version: int = Field(ge=1)
    why: str


Answer = Literal["approved", "rejected", "expired"]


class Decision(Record):
    """The answer about a candidate that waited for one: its promotion, or not, and the end of its slot in one."""

    kind: Literal["decision"] = "decision"
    version: int = Field(ge=1)
    answer: Answer = Field(description="Expired: nobody has answered in time.")
    by: str = Field("", description="Who decided, as that person was named; empty if nobody has.")
    why: str

    @property
    def sentence(self) -> str:
        """The decision, who made it, and why."""
        return f"{self.answer} by {self.by}: {self.why}" if self.by else self.why


Cause = Literal["arrival", "drift"]


class Trigger(Record):
    """Why a slot was asked for: data has arrived, or data in service has drifted. One slot for each `key`."""

    kind: Literal["trigger"] = "trigger"
    slot: AwareDatetime
    cause: Cause
    key: str = Field(description="Hash of what was seen: of the same files, however often they are seen.")
    why: str


ModelRecord = Annotated[SlotStart | SlotEnd | Candidate | Choice | Decision | Trigger, Field(discriminator="kind")]
RECORD: TypeAdapter[SlotStart | SlotEnd | Candidate | Choice | Decision | Trigger] = TypeAdapter(ModelRecord)
