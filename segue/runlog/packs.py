"""Packs: copies of 500 records of a log in one object, so that a long log is read with few requests.

The records are the truth, and a pack is only a copy of their bytes, each with its own checksum. It is used for records
that the listing of the log shows, in the length that the listing shows. So a pack cannot bring back a record that is
gone, hide a newer one, or speak for another log: its key holds the id of the log's first record. A record that was
damaged when the pack was written is not in it. A pack that is missing or damaged costs requests, and nothing else.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections.abc import Iterable, Iterator

import crc32c
from pydantic import Field, ValidationError

from segue.errors import StoreError
from segue.records import Record
from segue.runlog import keys
from segue.runlog.entries import is_intact
from segue.stores.base import ObjectInfo, Store
from segue.stores.parallel import read_each

log = logging.getLogger(__name__)

PACK_SLOTS = 500
_MOST_PACK_BYTES = 64 * 2**20
"""Of the records in a pack. Those that do not fit are left out, and are read one by one."""
_USUAL_PACK_BYTES = 2**20
_LOG_ID = re.compile(r"[0-9a-f]{32}")
"""Ids come from storage that others may write; one of another form cannot be part of a key."""


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
        """Packs that need not be written: they are there, or could not be written just now."""
        self._writing: threading.Thread | None = None

    def read(self, packs: Iterable[int], *, log_id: str) -> Iterator[tuple[int, bytes]]:
        """Slots and bytes of the records in these packs, as far as they are there and not damaged.

        Raises:
            StoreReadError: the store could not be read.
        """
        numbers = {} if not _LOG_ID.fullmatch(log_id) else {self._key(log_id, number): number for number in packs}
        wanted = (ObjectInfo(key, _USUAL_PACK_BYTES) for key in numbers)
        for key, data in read_each(self._store, wanted, most_bytes=_MOST_PACK_BYTES):
            records = None if data is None else _unpacked(data, first_slot=numbers[key] * PACK_SLOTS, log_id=log_id)
            if data is not None and records is None:
                log.warning("damaged pack of the log ignored key=%s", key)
            if records is not None:
                self._done.add(numbers[key])
                yield from records.items()

    def write_next(self, *, log_id: str, end: int) -> None:
        """Write the oldest pack that is missing, if the slots up to `end` fill one. Does not block.

        Best effort: what fails here is done by the next process that appends to the log.
        """
        missing = next((number for number in range(end // PACK_SLOTS) if number not in self._done), None)
        is_busy = self._writing is not None and self._writing.is_alive()
        if missing is None or is_busy or not _LOG_ID.fullmatch(log_id):
            return
        self._done.add(missing)
        self._writing = threading.Thread(target=self._write, args=(missing, log_id), name="segue-pack", daemon=True)
        self._writing.start()

    def _write(self, number: int, log_id: str) -> None:
        try:
            if not any(self.read([number], log_id=log_id)):  # Another process may have written it.
                self._store.put(self._key(log_id, number), self._packed(number, log_id))
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
        return {int(slot): record for slot, _, record in pairs}
    except (ValidationError, ValueError, zlib.error):
        return None
