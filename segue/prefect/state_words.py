"""Defines segue's words for the ends of flow runs. Segue puts each word into a state that Prefect's UI knows.

The pages of a deployment show only flow runs whose state has one of Prefect's own names. Therefore a state keeps the
name of its type, and its message begins with segue's word: "Preempted: notice at step 508". Lists of flow runs show no
messages, so the word is also a tag.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Completed, Failed

from segue.records import SegmentReport, StopReason
from segue.units import duration

TAG_START = "ended: "
"""Prefix of a tag that says how a flow run ended. The colon distinguishes it from tags with a run id, which have no
colon."""


class Word(StrEnum):
    """The words for the ends of flow runs. Code compares states by word and type, never by name."""

    PREEMPTED = "Preempted"
    LOST = "Lost"
    FENCED = "Fenced"
    OUT_OF_MEMORY = "Out of memory"
    HUNG = "Hung"
    NO_CAPACITY = "No capacity"
    START_FAILED = "Start failed"
    WITHDRAWN = "Withdrawn"
    ANOMALY = "Anomaly"
    LATE = "Late"
    BROKEN = "Broken"
    HOPELESS = "Hopeless"
    OUT_OF_BUDGET = "Out of budget"
    PARENT_LOST = "Parent lost"
    DUPLICATE = "Duplicate"
    PROMOTED = "Promoted"
    NOT_PROMOTED = "Not promoted"
    SKIPPED = "Skipped"
    SUPERSEDED = "Superseded"
    NO_DATA = "No data"
    DATA_GATE = "Data gate"
    NOT_CONTINUOUS = "Not continuous"
    NOT_PROVEN = "Not proven"
    DELETED = "Deleted"
    """The word for a deleted flow run. Only a parent uses this word. No flow run on a server has it as a state."""

    @property
    def type(self) -> StateType:
        """The type of a state with this word."""
        return _TYPES[self]

    @property
    def old_name(self) -> str:
        """The name that this state has in older versions of segue, where the word was the state's name."""
        # In the older versions, a late run was Completed, like a run on time.
        return "CompletedLate" if self is Word.LATE else self.title().replace(" ", "")

    @property
    def tag(self) -> str:
        """The tag of a flow run that has ended with this word."""
        return f"{TAG_START}{self.lower()}"


_TYPES = {
    Word.PREEMPTED: StateType.CRASHED,
    Word.LOST: StateType.CRASHED,
    Word.FENCED: StateType.CRASHED,
    Word.OUT_OF_MEMORY: StateType.CRASHED,
    Word.HUNG: StateType.CRASHED,
    Word.NO_CAPACITY: StateType.CANCELLED,
    Word.START_FAILED: StateType.CANCELLED,
    Word.WITHDRAWN: StateType.CANCELLED,
    Word.ANOMALY: StateType.FAILED,
    # The run has reached its goal too late, and a list of runs must show this.
    Word.LATE: StateType.FAILED,
    Word.BROKEN: StateType.FAILED,
    Word.HOPELESS: StateType.FAILED,
    Word.OUT_OF_BUDGET: StateType.FAILED,
    Word.PARENT_LOST: StateType.CRASHED,
    Word.DUPLICATE: StateType.CANCELLED,
    Word.PROMOTED: StateType.COMPLETED,
    Word.NOT_PROMOTED: StateType.COMPLETED,
    Word.SKIPPED: StateType.COMPLETED,
    Word.SUPERSEDED: StateType.CANCELLED,
    Word.NO_DATA: StateType.FAILED,
    Word.DATA_GATE: StateType.FAILED,
    Word.NOT_CONTINUOUS: StateType.FAILED,
    Word.NOT_PROVEN: StateType.FAILED,
    Word.DELETED: StateType.CRASHED,
}
_OF_ACTIONS = {"broken": Word.BROKEN, "hopeless": Word.HOPELESS, "budget": Word.OUT_OF_BUDGET}
"""The words for decisions that end a run before its goal. A failed recipe has no word."""
_OF_STOPS = {
    StopReason.NOTICE: Word.PREEMPTED,
    StopReason.LOST: Word.LOST,
    StopReason.FENCED: Word.FENCED,
    StopReason.OUT_OF_MEMORY: Word.OUT_OF_MEMORY,
    StopReason.HUNG: Word.HUNG,
    StopReason.NO_CAPACITY: Word.NO_CAPACITY,
    StopReason.START_FAILED: Word.START_FAILED,
}
"""The words for attempts that ended before their goal, without a failure of the recipe and without a cancellation."""
_OLD_NAMES = {word.old_name: word for word in Word}
_FIRST = re.compile(rf"({'|'.join(Word)}): ")


def state_with(word: Word, message: str) -> State[Any]:
    """Return the state of a flow run that has ended with this word."""
    return State(type=word.type, message=f"{word}: {message}")


def word_of(state: State[Any]) -> Word | None:
    """Return the word of a state, which may come from an older version of segue. Return None if it has no word."""
    found = _FIRST.match(state.message or "")
    if found is not None and Word(found[1]).type is state.type:
        return Word(found[1])
    return _OLD_NAMES.get(state.name or "")


def in_words(state: State[Any]) -> str:
    """Return the name of a state for people: segue's word if the state has one, or Prefect's name."""
    word = word_of(state)
    return word.value if word is not None else state.name or "unknown"


def has_reached_goal(state: State[Any]) -> bool:
    """Whether a parent's state means that the run has reached its goal, on time or late."""
    return state.is_completed() or word_of(state) is Word.LATE


def is_by_a_person(state: State[Any]) -> bool:
    """Whether a person, and not segue or a concurrency limit, caused this cancellation. False for other states."""
    is_by_limit = "concurrency limit" in (state.message or "").lower()
    return (state.is_cancelling() or state.is_cancelled()) and word_of(state) is None and not is_by_limit


def state_of_run(action: str, message: str, *, late_seconds: float | None = None) -> State[Any]:
    """Return the state of a run: Completed if it reached its goal on time, Cancelled if a person stopped it, or Failed.

    A run that reached its goal after its deadline is also Failed, because lists show only the type of a state. For such
    a run, the message says that the goal is reached, and by how much the run is late.
    """
    if action == "finished" and late_seconds is not None:
        if late_seconds > 0:
            return state_with(Word.LATE, f"{duration(late_seconds)} after the deadline; {message}")
        return Completed(message=f"on time by {duration(-late_seconds)}; {message}")
    if action == "finished":
        return Completed(message=message)
    if action in ("stopped", "cancelled"):
        return Cancelled(message=message)
    word = _OF_ACTIONS.get(action)
    return state_with(word, message) if word is not None else Failed(message=message)


def state_of_attempt(report: SegmentReport) -> State[Any]:
    """Return the state of an attempt in the Prefect UI. The state of a preempted attempt is Crashed, never Failed."""
    reason, message = report.stop_reason, _message_of(report)
    if reason in (StopReason.FINISHED, StopReason.BOUND):
        return Completed(message=message)
    if reason is StopReason.CANCELLED:
        return Cancelled(message=message)
    if reason is StopReason.FAILED:
        return state_with(Word.ANOMALY, message) if report.anomaly is not None else Failed(message=message)
    return state_with(_OF_STOPS[reason], message)


def _message_of(report: SegmentReport) -> str:
    """Return one line about the attempt. If the attempt failed, add the traceback of the user's code."""
    if not report.got_capacity and report.note:
        return report.note
    ref = report.checkpoint
    committed = f"step {ref.step} is committed" if ref is not None else "this attempt committed nothing"
    line = f"{report.stop_reason.in_words} at step {report.to_step} on {report.capacity}; {committed}, "
    line += f"{report.lost_steps} steps must be done again" if report.lost_steps else "no step is lost"
    if report.note:
        line += f"; {report.note}"
    return f"{line}\n{report.failure.traceback}" if report.failure else line
