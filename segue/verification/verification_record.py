"""Records the outcome of a scheduled verification, and finds the time since which all verifications have passed."""

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
    """One verification: an undisturbed and a disturbed run of the same spec, and their comparison."""

    slot: AwareDatetime = Field(description="Scheduled time, which is part of the names of the two runs.")
    run_id: str = Field(description="Run id of the run spec that was verified.")
    workload: str
    steps: int = Field(gt=0)
    undisturbed: str = Field(description="Run id of the undisturbed run.")
    disturbed: str = Field(description="Run id of the disturbed run.")
    outcome: Outcome
    reason: str = Field(description="The outcome in one sentence.")
    is_conclusive: bool = Field(
        description="True if both runs have finished or a resume is broken; otherwise the verification can continue."
    )
    verdict: VerdictKind = Field(description="Worst verdict of the compared resumes; unverified if none was compared.")
    identical: bool = Field(description="True if all components of the two final checkpoints are equal bit for bit.")
    kills: int = Field(0, ge=0, description="Number of kills that ended an attempt on spot.")
    notices: int = Field(0, ge=0, description="Number of notices that ended an attempt on spot.")
    preemptions: int = Field(0, ge=0, description="Number of preemptions of both runs by the pool itself.")
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
    """The newest unbroken series of verifications that passed."""

    since: datetime
    """Scheduled time of the first verification of the series."""
    count: int
    """Number of verifications in the series."""
    days: int
    """Whole days from the first verification of the series to now."""

    @property
    def in_words(self) -> str:
        times = "1 verification" if self.count == 1 else f"{self.count} verifications"
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return f"green for {days} ({times} since {self.since:%Y-%m-%d %H:%M %Z})"


def newest_of_each(recorded: Sequence[Verification]) -> tuple[Verification, ...]:
    """Return the newest record of each scheduled time, in the order of time.

    A continued verification has several records.
    """
    return tuple(sorted({one.slot: one for one in recorded}.values(), key=lambda one: one.slot))


def green(history: Sequence[Verification], *, now: datetime) -> Green | None:
    """Return the series of passed verifications at the end of `history` (oldest first).

    Return None if the newest verification did not pass.
    """
    passed = []
    for one in reversed(history):
        if not one.is_green:
            break
        passed.append(one)
    if not passed:
        return None
    since = passed[-1].slot
    return Green(since, len(passed), max(int((now - since).total_seconds() // _DAY_SECONDS), 0))
