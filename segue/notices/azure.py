"""Reads notices of Azure: evictions of spot machines, from scheduled events of the instance metadata service."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

from segue.clock import Clock
from segue.notices.board import NoticeBoard
from segue.notices.metadata_client import LINK_LOCAL, OK, MetadataAnswer, MetadataService

_ADDRESS_VARIABLE = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
_METADATA = {"Metadata": "true"}
_COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_ENDS = frozenset({"Preempt", "Terminate"})
_GRACE_SECONDS = 30.0
"""If an event has begun and has no time, the eviction comes at least this many seconds after the event."""
_EVENTS_SECONDS = 10.0
"""Timeout in seconds for reading events. The first request is slow, because it enables events for the machine."""


class AzureWatcher:
    """Watches the events that end this machine. If Azure no longer lists an event, the event was withdrawn."""

    name: ClassVar[str] = "azure"
    period_seconds: ClassVar[float] = 1.0  # As Azure recommends; an eviction comes 30 s ahead.

    def __init__(self, clock: Clock, environ: Mapping[str, str]) -> None:
        """`environ` may contain the variable with which Azure's own libraries find the service."""
        self._clock = clock
        self._service = MetadataService("Azure", environ.get(_ADDRESS_VARIABLE) or LINK_LOCAL)
        self._machine: str | None = None
        self._incarnation: object = None
        self._ends_at: dict[str, float] = {}
        """Deadline of each event of this machine, in monotonic seconds."""

    def is_here(self, *, timeout_seconds: float) -> bool:
        answer = self._service.request(_COMPUTE, headers=_METADATA, timeout_seconds=timeout_seconds)
        if answer.status != OK:
            return False
        found = self._service.document(answer)
        return isinstance(found.get("vmId"), str) and isinstance(found.get("name"), str)

    def zone(self) -> str:
        found = self._service.document(self._service.request(_COMPUTE, headers=_METADATA))
        return "-".join(str(found[name]) for name in ("location", "zone") if found.get(name))

    def poll(self, board: NoticeBoard) -> None:
        if self._machine is None:
            self._machine = self._name()
        # The watcher only reads the events. A POST would approve an event, and the event would then begin immediately.
        answer = self._service.request(_EVENTS, headers=_METADATA, timeout_seconds=_EVENTS_SECONDS)
        document = self._service.document(answer)
        incarnation = document.get("DocumentIncarnation")
        if incarnation is not None and incarnation == self._incarnation:
            return
        ends_at = {id_: self._end_of(event, answer) for id_, event in self._own(document, answer)}
        if ends_at:
            board.restate(self.name, grace_seconds=min(ends_at.values()) - self._clock.monotonic())
        elif self._ends_at:
            board.withdraw(self.name)
        self._ends_at, self._incarnation = ends_at, incarnation

    def _name(self) -> str:
        answer = self._service.request(_COMPUTE, headers=_METADATA)
        name = self._service.document(answer).get("name")
        if not isinstance(name, str) or not name:
            raise self._service.error(answer.url, "its answer does not have this machine's name")
        return name.casefold()

    def _own(self, document: Mapping[str, Any], answer: MetadataAnswer) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the events that end this machine, by event id. `document` also lists events of other machines."""
        events = document.get("Events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise self._service.error(answer.url, f"its answer has no list of events: {answer.text[:80]!r}")
        for event in events:
            names = [str(name).casefold() for name in event.get("Resources") or ()]
            if event.get("EventType") in _ENDS and self._machine in names:
                yield str(event.get("EventId")), event

    def _end_of(self, event: Mapping[str, Any], answer: MetadataAnswer) -> float:
        text, now = event.get("NotBefore"), self._clock.monotonic()
        if not text:  # The event has begun. The time that was stated before remains.
            return min(self._ends_at.get(str(event.get("EventId")), math.inf), now + _GRACE_SECONDS)
        return now + (self._time(str(text), answer) - self._clock.now()).total_seconds()

    def _time(self, text: str, answer: MetadataAnswer) -> datetime:
        try:
            found = parsedate_to_datetime(text)
        except ValueError:
            raise self._service.error(answer.url, f"an event has no valid time: {text[:80]!r}") from None
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
