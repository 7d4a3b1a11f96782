"""Reads and writes the objects of recovery checks: the mark of the last start, and the record of the last end."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Examinable, Store


class LookRecord(Record):
    """The record of the last recovery check that ended.

    Each check overwrites this record. A change of `counter` shows that checks are running.
    """

    look_id: str
    counter: int = Field(0, ge=0)
    interval_seconds: float | None = Field(
        None, gt=0, description="Scheduled seconds between two checks; None: not known."
    )
    ended_at: datetime


def read_look(store: Store) -> LookRecord | None:
    """Return the record of the last check that ended. Return None if there is no record, or if it cannot be parsed.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return LookRecord.model_validate_json(store.get(keys.LOOK_KEY))
    except (MissingObjectError, ValueError):
        return None


def write_look(store: Store, record: LookRecord) -> None:
    """Write or replace the record of the last check.

    Raises:
        StoreWriteError: the object was not written.
    """
    store.put(keys.LOOK_KEY, record.model_dump_json().encode(), durable=False)


def write_begun(store: Store, look_id: str) -> None:
    """Write the mark that a check starts.

    Raises:
        StoreWriteError: the object was not written.
    """
    store.put(keys.LOOK_BEGUN_KEY, look_id.encode(), durable=False)


def ended_at(store: Store) -> datetime | None:
    """Return the time at which the last check ended, on the store's clock.

    Return None if no check has ended, or if objects of the store have no times.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _modified_at(store, keys.LOOK_KEY)


def begun_at(store: Store) -> datetime | None:
    """Return the time at which the newest check started, on the store's clock. Return None as `ended_at` does.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _modified_at(store, keys.LOOK_BEGUN_KEY)


def probed_at(store: Store) -> datetime | None:
    """Return the time of the last `probe_writes`, on the store's clock. Return None as `ended_at` does.

    Directly after a call of `probe_writes`, the result is the current time of the store.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _modified_at(store, keys.PROBE_KEY)


def _modified_at(store: Store, key: str) -> datetime | None:
    if not isinstance(store, Examinable):
        return None
    try:
        return store.modified_at(key)
    except MissingObjectError:
        return None
