"""Copies 500 records of a log into one object, called a pack, so that a long log can be read with few requests.

A record is final as soon as a later record exists. A copy of the record's bytes, which include a checksum, can
therefore replace the record, even if the record itself is damaged later. A pack does not contain records that were
damaged when the pack was written.

A pack cannot hide newer records, because newer records are listed and read as usual. A pack is never used for another
log. The key of the pack contains the id of the first record, and this id is read from the log itself. A log may also
have been restored from a backup. A reader therefore compares the last record of each pack with the same record in the
log. The id of this record is unique, and its writer had read all earlier records. If these two records are equal, all
records of the pack are therefore equal to those of the log. If a pack is missing, damaged or of another state of the
log, reading the log only takes more requests.
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
from segue.runlog.framing import is_intact
from segue.stores.base import ObjectInfo, Store
from segue.stores.parallel import READERS, read_each

log = logging.getLogger(__name__)

PACK_SLOTS = 500
_MOST_PACK_BYTES = 64 * 2**20
"""Limit in bytes for the size of all records in a pack. Records beyond this limit are read one by one."""
_USUAL_PACK_BYTES = 2**20
_LOG_ID = re.compile(r"[0-9a-f]{32}")
"""Pattern of log ids. Untrusted parties may write to the storage, so no other text may become part of a key."""


class PackHead(Record):
    """The first line of a pack. The following lines are the compressed records. Each line is one record with its slot
    number."""

    log_id: str
    first_slot: int = Field(ge=0)
    crc32c: int = Field(description="Checksum of the compressed records.")


class Packs:
    """Reads and writes the packs of one run's log."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._done: set[int] = set()
        """Numbers of the packs that exist, or that this process has tried to write."""
        self._writing: threading.Thread | None = None

    def find(self) -> dict[str, list[int]]:
        """Return the numbers of the packs in the store, by log id. Packs of an earlier log of this run may also exist.

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
        """Return the slots and the bytes of the records in these packs, in order.

        Missing packs and packs of another log are skipped.

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
                    log.warning(
                        "pack ignored, because it is of another state of the log key=%s", self._key(log_id, last[key])
                    )
                    continue
                self._done.add(last[key])
                yield from records.items()

    def _fetch(self, packs: Iterable[int], log_id: str) -> dict[int, dict[int, bytes]]:
        """Return the records of the undamaged packs, by pack number."""
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
        """Write the oldest missing pack in the background, if all of its slots are before `end`.

        After a failure, the next process that appends to the log writes the pack.
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
        """Write a pack. The call has no effect if the pack exists.

        Raises:
            StoreReadError, StoreWriteError: the pack was not written.
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
    """Return the records of a pack by slot. Return None if the bytes are damaged or belong to another pack."""
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
