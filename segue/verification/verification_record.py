"""The outcome of a scheduled verification, and since when all of them have passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime, Field

from segue.records import Record, VerdictKind
from segue.verification.drill_comparison import Problem, Resume

_DAY_SECONDS = 86_400


class Outcome(StrEnum):
    """The outcome of a verification."""

    PASSED = "passed"
    NOT_CONTINUOUS = "not continuous"
    NOT_PROVEN = "not proven"


class Verification(Record):
    """One verification: two runs of the same spec, one of them disturbed, and how they compare."""

    slot: AwareDatetime = Field(description="Time of the schedule, which names the two runs.")
    run_id: str = Field(description="Run whose spec was verified.")
    workload: str
    steps: int = Field(gt=0)
    undisturbed: str = Field(description="Run id of the undisturbed run.")
    disturbed: str = Field(description="Run id of the disturbed run.")
    outcome: Outcome
    reason: str = Field(description="The outcome in one sentence.")
    is_conclusive: bool = Field(
        description="Whether both runs have finished, or a resume is broken; else it can go on."
    )
    verdict: VerdictKind = Field(description="Worst verdict of the resumes that could be compared; unverified if none.")
    identical: bool = Field(description="Every component of the two final checkpoints is equal bit for bit.")
    kills: int = Field(0, ge=0, description="Kills that ended an attempt on spot.")
    notices: int = Field(0, ge=0, description="Notices that ended an attempt on spot.")
    preemptions: int = Field(0, ge=0, description="Preemptions of both runs by the pool itself.")
    resumes: tuple[Resume, ...] = ()
    differing: tuple[str, ...] = Field((), description="Components in which the two final checkpoints differ.")
    problems: tuple[Problem, ...] = ()
    seconds: float = Field(0.0, ge=0, description="Paid seconds of both runs.")
    cost: float = Field(0.0, ge=0, description="Cost of both runs, in `currency`.")
    currency: str = ""

    @property
    def is_green(self) -> bool:
        return self.outcome is Outcome.PASSED


@dataclass(frozen=True)
class Green:
    """How long every verification has passed."""

    since: datetime
    """Time of the first one that passed after the last one that did not."""
    count: int
    """How many have passed since then."""
    days: int
    """Whole days from then to now."""

    @property
    def in_words(self) -> str:
        times = "1 verification" if self.count == 1 else f"{self.count} verifications"
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return f"green for {days} ({times} since {self.since:%Y-%m-%d %H:%M %Z})"


def newest_of_each(recorded: Sequence[Verification]) -> tuple[Verification, ...]:
    """One verification for each time of the schedule, in the order of time: one that went on replaces its record."""
    return tuple(sorted({one.slot: one for one in recorded}.values(), key=lambda one: one.slot))


def green(history: Sequence[Verification], *, now: datetime) -> Green | None:
    """Since when the verifications in `history`, oldest first, have passed; None while the newest one did not."""
    passed = []
    for one in reversed(history):
        if not one.is_green:
            break
        passed.append(one)
    if not passed:
        return None
    since = passed[-1].slot
    return Green(since, len(passed), max(int((now - since).total_seconds() // _DAY_SECONDS), 0))
