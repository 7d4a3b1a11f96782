"""Sends the events of a run, for automations and for the event feed of the UI. Prefect gets each event only once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import Event, RelatedResource, Resource
from prefect.events.filters import EventFilter, EventIDFilter

from segue.prefect.api import is_refusal
from segue.reports.run_events import AT_RISK, BUDGET, LATE, RECOVERY_SILENT, RESUME_BROKEN, STALE_PRICES, RunEvent

Logger = logging.Logger | logging.LoggerAdapter[Any]

_FOR_A_PERSON = (RESUME_BROKEN, AT_RISK, LATE, BUDGET, STALE_PRICES, RECOVERY_SILENT)
_OLD = timedelta(days=1)
"""Age up to which events are sent. A parent that starts again derives all events of the run, including old events."""

_MOST_AT_ONCE = 50
"""Maximum number of events that the server returns for one request."""


def resource_id(run_id: str) -> str:
    """Return the id of the resource in a run's events."""
    return f"segue.run.{run_id}"


def model_resource_id(name: str) -> str:
    """Return the id of the resource in the events of a model's slots."""
    return f"segue.model.{name}"


class Announcer:
    """Sends the events that the server does not have. An event's id is derived from the log's id and the event's
    key.
    """

    def __init__(
        self, name: str, *, log_id: str, flow_run_id: UUID | None, logger: Logger, resource: str | None = None
    ) -> None:
        """`resource` is the id of the resource in the events. The default is the id of the run with this name."""
        self._resource = {"prefect.resource.id": resource or resource_id(name), "prefect.resource.name": name}
        self._log_id, self._flow_run_id, self._logger = log_id, flow_run_id, logger
        self._settled: set[UUID] = set()

    def announce(self, client: SyncPrefectClient, events: Iterable[RunEvent], *, now: datetime) -> None:
        """Send the events that no process has sent before.

        Raises:
            httpx.HTTPError, PrefectHTTPStatusError: some events may not have been sent; a retry is safe.
        """
        named = {self._id_of(event): event for event in events}
        self._settled |= {one for one, event in named.items() if now - event.at > _OLD}
        new = [one for one in named if one not in self._settled]
        for first in range(0, len(new), _MOST_AT_ONCE):
            some = new[first : first + _MOST_AT_ONCE]
            found = client.read_events(EventFilter(id=EventIDFilter(id=some)), limit=_MOST_AT_ONCE)
            known = {event.id for event in found.events}
            unsent = [self._built(one, named[one]) for one in some if one not in known]
            if unsent:
                self._send(client, unsent)
            self._settled |= set(some)

    def _send(self, client: SyncPrefectClient, events: list[Event]) -> None:
        try:
            # This request is separate, because the worker thread of `emit_event` does not report success.
            client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])
        except Exception as error:
            if not is_refusal(error):
                raise
            self._logger.warning("prefect refused events names=%s reason=%s", [event.event for event in events], error)
            return
        for event in events:
            level = logging.WARNING if event.event in _FOR_A_PERSON else logging.INFO
            self._logger.log(level, "event %s: %s", event.event, event.payload["sentence"])

    def _id_of(self, event: RunEvent) -> UUID:
        return uuid5(NAMESPACE_URL, f"segue:{self._log_id}:{event.key}")

    def _built(self, event_id: UUID, event: RunEvent) -> Event:
        parent = {"prefect.resource.id": f"prefect.flow-run.{self._flow_run_id}", "prefect.resource.role": "flow-run"}
        return Event(
            id=event_id,
            occurred=event.at,
            event=event.name,
            resource=Resource(self._resource),
            related=[RelatedResource(parent)] if self._flow_run_id is not None else [],
            payload={**event.facts, "sentence": event.sentence},
        )
