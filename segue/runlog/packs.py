"""Packs: copies of 500 records of a log in one object, so that a long log is read with few requests.

A record is final as soon as a later one exists. So a copy of its bytes, which have their own checksum, can replace it,
even if the record itself is damaged later. A record that was damaged when the pack was written is not in the pack.

A pack cannot hide newer records, which are listed and read as usual. It cannot replace another log, because its key
holds the id of the log's first record, which is read from the log itself. It cannot replace another state of the same
log either, for example after a part of the log was restored from a backup: the last record of each pack is compared
with the log's own. The writer of that record had read all records before it, and its id is unique. So if the last
record is the same, the others are the same as well. A pack that is missing, damaged or of another state costs only
requests.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

import crc32c
from pydantic import Field, ValidationError

from segue.errors import StoreError
from segue.records import Record
from segue.runlog import keys
from segue.runlog.entries import is_intact
from segue.stores.base import ObjectInfo, Store
from segue.stores.parallel import READERS, read_each

log = logging.getLogger(__name__)

PACK_SLOTS = 500
_MOST_PACK_BYTES = 64 * 2**20
"""Limit for all records in a pack. Records that do not fit are left out, and are read one by one."""
_USUAL_PACK_BYTES = 2**20
_LOG_ID = re.compile(r"[0-9a-f]{32}")
"""Ids come from storage that others may write; an id of another form must not become part of a key."""


class PackHead(Record):
    """The first line of a pack; after it come its records, compressed, each in a line with its slot."""

    log_id: str
    first_slot: int = Field(ge=0)
    crc32c: int = Field(description="Checksum of the compressed records.")


class Packs:
    """The packs of one run's log, as far as they were read or written."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._done: set[int] = set()
        """Packs that need not be written: they exist, or could not be written just now."""
        self._writing: threading.Thread | None = None

    def find(self) -> dict[str, list[int]]:
        """The numbers of the packs in the store, by the id of their log: an earlier log of this run may have left some.

        Raises:
            StoreReadError: the store could not be read.
        """
        found = defaultdict(list)
        for item in self._store.list_objects(keys.packs_prefix(self._run_id)):
            named = keys.log_and_slot_of(item.key)
            if named is not None and named[1] % PACK_SLOTS == 0:
                found[named[0]].append(named[1] // PACK_SLOTS)
        return found

    def read(self, packs: Iterable[int], *, log_id: str) -> Iterator[tuple[int, bytes]]:
        """Slots and bytes of the records in these packs, in order, as far as the packs exist and belong to this log.

        Raises:
            StoreReadError: the store could not be read.
        """
        waiting = iter(sorted(packs))
        while some := tuple(islice(waiting, READERS)):
            found = self._fetch(some, log_id)
            last = {keys.log_key(self._run_id, max(found[number])): number for number in found}
            wanted = (ObjectInfo(key, _USUAL_PACK_BYTES) for key in last)
            for key, data in read_each(self._store, wanted, most_bytes=_MOST_PACK_BYTES):
                records = found[last[key]]
                if data != records[max(records)]:
                    log.warning("pack of another state of the log ignored key=%s", self._key(log_id, last[key]))
                    continue
                self._done.add(last[key])
                yield from records.items()

    def _fetch(self, packs: Iterable[int], log_id: str) -> dict[int, dict[int, bytes]]:
        """The records of the packs that are not damaged."""
        numbers = {self._key(log_id, number): number for number in packs}
        wanted = (ObjectInfo(key, _USUAL_PACK_BYTES) for key in numbers)
        found = {}
        for key, data in read_each(self._store, wanted, most_bytes=_MOST_PACK_BYTES):
            records = None if data is None else _unpacked(data, first_slot=numbers[key] * PACK_SLOTS, log_id=log_id)
            if records:
                found[numbers[key]] = records
            elif data is not None:
                log.warning("damaged pack of the log ignored key=%s", key)
        return found

    def write_next(self, *, log_id: str, end: int) -> None:
        """Write the oldest pack that is missing, if the slots up to `end` fill one. Does not block.

        Best effort: a pack that is not written here is written by the next process that appends to the log.
        """
        missing = next((number for number in range(end // PACK_SLOTS) if number not in self._done), None)
        is_busy = self._writing is not None and self._writing.is_alive()
        if missing is None or is_busy or not _LOG_ID.fullmatch(log_id):
            return
        self._done.add(missing)
        self._writing = threading.Thread(
            target=self._try_to_write, args=(missing, log_id), name="segue-pack", daemon=True
        )
        self._writing.start()

    def write(self, number: int, *, log_id: str) -> None:
        """Write a pack, unless it exists.

        Raises:
            StoreReadError, StoreWriteError: it was not written.
        """
        if not any(self.read([number], log_id=log_id)):  # Another process may have written it.
            self._store.put(self._key(log_id, number), self._packed(number, log_id))

    def _try_to_write(self, number: int, log_id: str) -> None:
        try:
            self.write(number, log_id=log_id)
        except StoreError as error:
            log.info("pack of the log not written number=%d reason=%s", number, error)

    def _packed(self, number: int, log_id: str) -> bytes:
        first = number * PACK_SLOTS
        wanted = [ObjectInfo(keys.log_key(self._run_id, first + offset), 0) for offset in range(PACK_SLOTS)]
        lines, size_bytes = [], 0
        for offset, (_, data) in enumerate(read_each(self._store, wanted, most_bytes=_MOST_PACK_BYTES)):
            fits = data is not None and size_bytes + len(data) < _MOST_PACK_BYTES // 2
            if data is not None and fits and is_intact(data) and b"\n" not in data:
                lines.append(b"%08d %b\n" % (first + offset, data))
                size_bytes += len(data)
        body = zlib.compress(b"".join(lines))
        head = PackHead(log_id=log_id, first_slot=first, crc32c=crc32c.crc32c(body))
        return head.model_dump_json().encode() + b"\n" + body

    def _key(self, log_id: str, number: int) -> str:
        return keys.pack_key(self._run_id, log_id, number * PACK_SLOTS)


def _unpacked(data: bytes, *, first_slot: int, log_id: str) -> dict[int, bytes] | None:
    """The records of a pack by their slots; None when the bytes are not the pack that was asked for."""
    line, _, body = data.partition(b"\n")
    try:
        head = PackHead.model_validate_json(line)
        if (head.log_id, head.first_slot, head.crc32c) != (log_id, first_slot, crc32c.crc32c(body)):
            return None
        inflating = zlib.decompressobj()
        lines = inflating.decompress(body, _MOST_PACK_BYTES).split(b"\n")
        if inflating.unconsumed_tail:
            return None
        pairs = (entry.partition(b" ") for entry in lines if entry)
        records = {int(slot): record for slot, _, record in pairs}
    except (ValidationError, ValueError, zlib.error):
        return None
    return records if all(first_slot <= slot < first_slot + PACK_SLOTS for slot in records) else None
