"""Disturbances of a drill: requests in the store that a segment kills its trainer, or gives it a notice.

Segments look for them only if the run spec has `continuity.disturbable`.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Store


class DisturbanceKind(StrEnum):
    """How a drill ends an attempt."""

    KILL = "kill"
    NOTICE = "notice"


class Disturbance(Record):
    """A request to end an attempt as a provider would."""

    kind: DisturbanceKind = Field(description="kill: SIGKILL of the whole process group; notice: SIGTERM.")
    requested_at: AwareDatetime


def request_disturbance(store: Store, request: Disturbance, *, run_id: str, attempt_id: str) -> None:
    """Request that an attempt is disturbed. An attempt is disturbed once: the first of several requests counts.

    Raises:
        StoreWriteError: it is not known whether the request was stored; a retry is safe.
    """
    store.put_if_absent(keys.disturbance_key(run_id, attempt_id), request.model_dump_json().encode())


def requested_disturbance(store: Store, *, run_id: str, attempt_id: str) -> Disturbance | None:
    """The disturbance that is requested of an attempt; None without one.

    Raises:
        StoreReadError: the store could not be read; look again later.
    """
    try:
        return Disturbance.model_validate_json(store.get(keys.disturbance_key(run_id, attempt_id)))
    except MissingObjectError:
        return None
