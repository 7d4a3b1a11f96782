"""Looks of recovery at a store: the mark of the newest look's start, and the record of the last look that ended."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from segue.errors import MissingObjectError
from segue.records import Record
from segue.runlog import keys
from segue.stores.base import Examinable, Store


class LookRecord(Record):
    """The last look that ended, overwritten in place. A changing counter, not a timestamp, shows that looks end."""

    look_id: str
    counter: int = Field(0, ge=0)
    interval_seconds: float | None = Field(
        None, gt=0, description="Time between two looks by the schedule; None: not known."
    )
    ended_at: datetime


def read_look(store: Store) -> LookRecord | None:
    """The last look that has ended; None when there is none, or its record cannot be parsed.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return LookRecord.model_validate_json(store.get(keys.LOOK_KEY))
    except (MissingObjectError, ValueError):
        return None


def write_look(store: Store, record: LookRecord) -> None:
    """Write or replace the record of the last look.

    Raises:
        StoreWriteError: it was not written.
    """
    store.put(keys.LOOK_KEY, record.model_dump_json().encode(), durable=False)


def write_begun(store: Store, look_id: str) -> None:
    """Write the mark that a look begins.

    Raises:
        StoreWriteError: it was not written.
    """
    store.put(keys.LOOK_BEGUN_KEY, look_id.encode(), durable=False)


def ended_at(store: Store) -> datetime | None:
    """When the last look ended, by the clock of the store; None when there was none, or the store does not show it.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _modified_at(store, keys.LOOK_KEY)


def begun_at(store: Store) -> datetime | None:
    """When the newest look began, as in `ended_at`.

    Raises:
        StoreReadError: the store could not be read.
    """
    return _modified_at(store, keys.LOOK_BEGUN_KEY)


def probed_at(store: Store) -> datetime | None:
    """When the store was last probed, as in `ended_at`: now, directly after `probe_writes`.

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
