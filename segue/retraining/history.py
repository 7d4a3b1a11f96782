"""Computes the state of a model from the model's log: versions, the version in service, and slots.

The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from segue.errors import UnknownVersionError
from segue.retraining.model_record import (
    DONE,
    IN_WORDS,
    Candidate,
    Choice,
    Decision,
    ModelRecord,
    SlotEnd,
    SlotOutcome,
    SlotStart,
    Trigger,
)
from segue.retraining.spec import Window

WAITING = "waits for a decision"


class Event(NamedTuple):
    """A record about a version: a candidate, a choice or a decision. The record may change the version in service."""

    at: datetime
    record: Candidate | Choice | Decision
    version: int
    """The version that the record describes."""
    in_service: int | None
    """The version in service after the record."""

    @property
    def why(self) -> str:
        """The reason, with the name of the person who decided."""
        return self.record.sentence if isinstance(self.record, Decision) else self.record.why


@dataclass(frozen=True)
class SlotState:
    """The records of one slot in the log."""

    slot: datetime
    start: SlotStart | None = None
    """The newest start of the slot. The value is None if the slot ended before the check of its data."""
    end: SlotEnd | None = None
    """The end of the slot. The value is None while the slot is open."""
    version: int | None = None
    """The version that the slot trained. The value is None if the slot trained no version."""
    decide_by: datetime | None = None
    """The time until which a person may approve the slot's version. The value is None if no person is asked."""
    decision: Decision | None = None
    """The decision about the version of the slot."""
    ends: int = 0
    """Number of times that the slot has ended. A slot that ended without a candidate may be started again."""

    @property
    def is_open(self) -> bool:
        """Whether the slot has not ended."""
        return self.end is None

    @property
    def is_waiting(self) -> bool:
        """Whether the slot's candidate waits for the decision of a person."""
        return self.is_open and self.decide_by is not None

    @property
    def outcome_in_words(self) -> str:
        """The outcome of the slot in words.

        Before the end of the slot, the text is `open` or `waits for a decision`.
        """
        if self.end is not None:
            return IN_WORDS[self.end.outcome]
        return WAITING if self.is_waiting else "open"

    @property
    def is_done(self) -> bool:
        """Whether the slot has ended with a candidate, so that another start of the slot changes nothing."""
        return self.end is not None and self.end.outcome in DONE


@dataclass(frozen=True)
class Models:
    """The versions of a model, numbered from 1, and all events about these versions."""

    name: str
    events: tuple[Event, ...]
    slots: Mapping[datetime, SlotState]
    """The slots by their time, in the order of their times."""
    triggers: Mapping[datetime, Trigger] = field(default_factory=dict)
    """The triggers that requested slots, by the slot's time. Scheduled slots and manual slots have no trigger."""

    @property
    def candidates(self) -> dict[int, Candidate]:
        """Every version of the model."""
        return {event.version: event.record for event in self.events if isinstance(event.record, Candidate)}

    @property
    def in_service(self) -> int | None:
        """The version in service. The value is None if no version is in service."""
        return self.events[-1].in_service if self.events else None

    @property
    def waiting(self) -> dict[int, SlotState]:
        """The slots whose candidates wait for a decision, by version."""
        return {state.version: state for state in self.slots.values() if state.is_waiting and state.version is not None}

    @property
    def before(self) -> int | None:
        """The version that was in service before the current version first came into service.

        A rollback returns to this earlier version.
        """
        earlier: int | None = None
        for event in self.events:
            if event.in_service == self.in_service:
                return earlier
            earlier = event.in_service
        return None

    def window_before(self, slot: datetime) -> SlotStart | None:
        """Return the start of the newest slot before `slot` whose data was accepted.

        The gate compares the data of `slot` with the data of this earlier slot.
        """
        starts = (state.start for time, state in self.slots.items() if time < slot)
        accepted = [start for start in starts if start is not None and start.run is not None]
        return accepted[-1] if accepted else None

    def trained_on(self, window: Window, *, but: datetime) -> datetime | None:
        """Return a slot that trains, or has last trained, on files with the same content. Ignore the slot `but`."""
        same = [slot for slot, known in self.last_windows(but=but).items() if known.content == window.content]
        return same[-1] if same else None

    def last_windows(self, *, but: datetime | None = None) -> dict[datetime, Window]:
        """Return the data of each open slot and of the newest finished slot. The keys of the result are the slots.

        The returned data needs no further slot. Data of earlier slots needs a further slot, for example if files are
        restored to an older content. If `but` is an earlier slot, the result also contains the last slot that was done
        before `but`.
        """
        slots = [state for state in self.slots.values() if state.slot != but and (state.is_open or state.is_done)]
        windows = {state.slot: state.start.window for state in slots if state.start and state.start.run}
        done = [slot for slot in windows if self.slots[slot].is_done]
        newest = {*done[-1:], *[slot for slot in done if but is not None and slot < but][-1:]}
        return {slot: window for slot, window in windows.items() if self.slots[slot].is_open or slot in newest}

    def version(self, number: int) -> Candidate:
        """Return the candidate with this version number.

        Raises:
            UnknownVersionError: there is no version with this number.
        """
        known = self.candidates
        if number not in known:
            raise UnknownVersionError(name=self.name, version=number, known=tuple(known))
        return known[number]

    def slot_of(self, number: int) -> SlotState:
        """Return the slot that trained a version.

        Raises:
            UnknownVersionError: there is no version with this number.
        """
        return self.slots[self.version(number).slot]


def models_of(name: str, records: Iterable[tuple[datetime, ModelRecord]]) -> Models:
    """Return the state that follows from the records of a model's log.

    The records come in the log's order, each with the time of its writing.
    """
    fold = _Fold()
    for at, record in records:
        fold.take(at, record)
    return Models(name, tuple(fold.events), dict(sorted(fold.slots.items())), fold.triggers)


@dataclass
class _Fold:
    """The state after all records that were added until now."""

    events: list[Event] = field(default_factory=list)
    slots: dict[datetime, SlotState] = field(default_factory=dict)
    triggers: dict[datetime, Trigger] = field(default_factory=dict)
    slot_of: dict[int, datetime] = field(default_factory=dict)
    """The slot of each version."""

    def take(self, at: datetime, record: ModelRecord) -> None:
        match record:
            case SlotStart():
                self._change(record.slot, start=record, end=None)
            case SlotEnd():
                self._end(record)
            case Candidate():
                self._add(at, record)
            case Choice():
                self.events.append(Event(at, record, record.version, record.version))
                self._settle(record.version, "promoted", f"promoted by hand: {record.why}")
            case Decision():
                self._decide(at, record)
            case Trigger():
                self.triggers[record.slot] = record

    def _add(self, at: datetime, candidate: Candidate) -> None:
        version = len(self.slot_of) + 1
        self.slot_of[version] = candidate.slot
        in_service = version if candidate.is_promoted else self._in_service
        self.events.append(Event(at, candidate, version, in_service))
        self._change(candidate.slot, version=version, decide_by=candidate.decide_by)
        if candidate.is_promoted:
            self._supersede(version, "was promoted")
        elif candidate.decide_by is not None:
            self._supersede(version, "waits for a decision in its place")

    def _decide(self, at: datetime, decision: Decision) -> None:
        is_approved = decision.answer == "approved"
        in_service = decision.version if is_approved else self._in_service
        self.events.append(Event(at, decision, decision.version, in_service))
        self._settle(decision.version, "promoted" if is_approved else "not_promoted", decision.sentence, decision)
        if is_approved:
            self._supersede(decision.version, "was promoted")

    def _supersede(self, version: int, what: str) -> None:
        """End the wait of earlier slots. A candidate never replaces a version that was trained for a later slot."""
        for state in list(self.slots.values()):
            if state.is_waiting and state.version is not None and state.slot < self.slot_of[version]:
                self._settle(state.version, "not_promoted", f"version {version}, trained for a later slot, {what}")

    def _settle(self, version: int, outcome: SlotOutcome, why: str, decision: Decision | None = None) -> None:
        """End a slot whose candidate waits. Other slots do not change."""
        state = self.slots[self.slot_of[version]]
        if state.is_waiting and state.version == version:
            self._change(state.slot, decision=decision)
            self._end(SlotEnd(slot=state.slot, outcome=outcome, why=why))

    def _end(self, end: SlotEnd) -> None:
        self._change(end.slot, end=end, ends=self._state(end.slot).ends + 1)

    def _change(self, slot: datetime, **fields: object) -> None:
        self.slots[slot] = replace(self._state(slot), **fields)  # type: ignore[arg-type]

    def _state(self, slot: datetime) -> SlotState:
        return self.slots.get(slot) or SlotState(slot)

    @property
    def _in_service(self) -> int | None:
        return self.events[-1].in_service if self.events else None
