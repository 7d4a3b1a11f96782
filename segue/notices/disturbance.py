"""The disturbances of a drill. A disturbance is a request in the store, at which a segment kills its trainer, or gives
the trainer a notice.

If the run spec sets `continuity.disturbable`, segments check for requests.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Store


class DisturbanceKind(StrEnum):
    """The way in which a drill ends an attempt."""

    KILL = "kill"
    NOTICE = "notice"


class Disturbance(Record):
    """A request to end an attempt as a provider would end it."""

    kind: DisturbanceKind = Field(description="kill: SIGKILL to the whole process group; notice: SIGTERM.")
    requested_at: AwareDatetime


def request_disturbance(store: Store, request: Disturbance, *, run_id: str, attempt_id: str) -> None:
    """Request a disturbance of an attempt. If the attempt already has a request, the store keeps the first request.

    Raises:
        StoreWriteError: it is unknown whether the request was stored; a retry is safe.
    """
    store.put_if_absent(keys.disturbance_key(run_id, attempt_id), request.model_dump_json().encode())


def requested_disturbance(store: Store, *, run_id: str, attempt_id: str) -> Disturbance | None:
    """Return the requested disturbance of an attempt. If there is no request, return None.

    Raises:
        StoreReadError: the store could not be read; try again later.
    """
    try:
        return Disturbance.model_validate_json(store.get(keys.disturbance_key(run_id, attempt_id)))
    except MissingObjectError:
        return None
