"""Stores the records of the parents of open runs.

Each open run has one small object, which its parent overwrites while the parent is alive.
"""

from __future__ import annotations

from segue.errors import MissingObjectError
from segue.records import ParentRecord
from segue.runlog import keys
from segue.stores.base import Store


def read_parent(store: Store, run_id: str) -> ParentRecord | None:
    """Return the parent record of a run. Return None if the run is not open, or if the record cannot be parsed.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return ParentRecord.model_validate_json(store.get(keys.parent_key(run_id)))
    except (MissingObjectError, ValueError):
        return None


def write_parent(store: Store, record: ParentRecord) -> None:
    """Write or replace the record of a run's parent.

    Raises:
        StoreWriteError: the record was not written.
    """
    store.put(keys.parent_key(record.run_id), record.model_dump_json().encode(), durable=False)


def remove_parent(store: Store, record: ParentRecord) -> None:
    """Remove the parent record of a run that has ended. A record of a newer parent stays.

    Raises:
        StoreReadError, StoreWriteError: the record may still exist. It is safe to call the function again.
    """
    found = read_parent(store, record.run_id)
    if found is not None and found.parent_id == record.parent_id:
        store.delete([keys.parent_key(record.run_id)])


def probe_writes(store: Store) -> None:
    """Write a test object of the size of a heartbeat. A smaller object might fit on a full disk.

    Raises:
        StoreWriteError: the store cannot be written.
    """
    store.put(keys.PROBE_KEY, b"written to see whether the store takes writes\n" * 20, durable=False)


def parents(store: Store) -> list[ParentRecord]:
    """Return the parent records of all open runs of a store, sorted by run id.

    Raises:
        StoreReadError: the store could not be read.
    """
    listed = (item.key.removeprefix(keys.PARENTS_PREFIX) for item in store.list_objects(keys.PARENTS_PREFIX))
    found = (read_parent(store, name.removesuffix(".json")) for name in listed)
    return [record for record in found if record is not None]
