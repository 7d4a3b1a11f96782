"""The run's log: append-only, one record per slot, written by put-if-absent and never rewritten."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from segue.clock import Clock, SystemClock
from segue.errors import DamagedRecordError, FencedError, LogMovedError, MissingObjectError
from segue.runlog import keys
from segue.runlog.entries import AnyEntry, Entry, decode, encode
from segue.stores.base import Store, StoreGoneError, StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_MOST_RECORD_BYTES = 64 * 2**20
_WIDEST_GAP_SLOTS = 1_000
"""Longest gap of missing records that is read. A key far beyond it is foreign, and must not cost a million reads."""


@dataclass(frozen=True)
class Slot:
    """A readable record and its slot number."""

    number: int
    entry: AnyEntry


@dataclass(frozen=True)
class Damage:
    """A slot that cannot be read, and why. Later slots are still valid."""

    slot: int
    key: str
    why: str


class Stamp(Protocol):
    """Returns the fields that every entry has."""

    def __call__(self, *, epoch: int) -> dict[str, object]: ...


class RunLog:
    """One run's log in a store. Safe to use from several threads.

    A writer appends at the slot after the last one it has read; if that slot is taken, it reads on. So the writer of
    each record has read all records before it, which makes the log linear without locks or clocks.
    """

    def __init__(self, store: Store, run_id: str, *, clock: Clock | None = None) -> None:
        self.store, self.run_id = store, run_id
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._slots: dict[int, Slot] = {}
        self._damage: dict[int, Damage] = {}
        self._next = 0
        self._is_listed = False
        self._unsure: dict[bytes, Entry] = {}
        """Records that were sent without an answer, by their content."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every readable record read so far, in order."""
        with self._lock:
            return tuple(self._slots[number] for number in sorted(self._slots))

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Slots that cannot be read: missing ones before the end, and damaged ones."""
        with self._lock:
            return tuple(self._damage[number] for number in sorted(self._damage))

    @property
    def next_slot(self) -> int:
        """The slot at which the next append is tried."""
        return self._next

    @property
    def log_id(self) -> str:
        """What tells this log from every other, also from one of the same name in another store or after a wipe.

        It is the id of the log's first record; empty while there is none.
        """
        with self._lock:
            return self._slots[min(self._slots)].entry.entry_id if self._slots else ""

    @property
    def highest_epoch(self) -> int:
        """The highest claim epoch in any record."""
        with self._lock:
            return max((slot.entry.epoch for slot in self._slots.values()), default=0)

    def reload(self) -> RunLog:
        """Read the whole log by listing it, which also shows missing slots. Returns this log.

        Raises:
            StoreReadError: the store could not be read.
        """
        with self._lock:  # Listed under it too: a record that another thread appends meanwhile would seem to be lost.
            listed = (keys.slot_of(item.key) for item in self.store.list_objects(keys.log_prefix(self.run_id)))
            numbers = {number for number in listed if number is not None}
            if self._next and self._next - 1 not in numbers:
                raise self._lost_records()
            for number in range(_end_of(numbers)):
                if number not in self._slots:  # A damaged slot is read again: a person may have restored it.
                    self._read_slot(number)
            self._is_listed = True
            return self.refresh()

    def refresh(self) -> RunLog:
        """Read the records appended since; the first time, the whole log. Returns this log.

        Raises:
            StoreReadError: the store could not be read.
        """
        with self._lock:
            if not self._is_listed:  # When reading slot by slot, a missing record would look like the end of the log.
                return self.reload()
            while self._read_tail():
                pass
            return self

    def append(self, build: Callable[[Stamp], Entry], *, epoch: int = 0, at: int | None = None) -> Slot:
        """Append one record to the log.

        `build` is called again after every lost race, with the log refreshed, so it may depend on the log. With
        `epoch`, the writer holds that claim, and a newer claim stops it. With `at`, the record is valid only directly
        after slot `at - 1`.

        A record whose answer was lost is recognized when it is appended again, and is not written twice.

        A crash before the return leaves the log as it was, or with the complete record in it.

        Raises:
            FencedError: a newer claim exists.
            LogMovedError: `at` was given, and that slot is taken.
            StoreWriteError, StoreReadError: it is not known whether the record was written; a retry is safe.
        """
        with self._lock:
            while True:
                self.refresh()
                if epoch and self.highest_epoch > epoch:
                    raise FencedError(epoch=epoch, newer_epoch=self.highest_epoch)
                number = self._next
                if at is not None and number != at:
                    raise LogMovedError(slot=at)
                self._require_last_slot()
                built = build(self._stamp)
                content = _content(built)
                entry = self._unsure.setdefault(content, built)
                landed = None if entry is built else self._slot_with(entry.entry_id)
                slot = landed or self._write(number, encode(entry))
                del self._unsure[content]
                if slot is not None:
                    return slot

    def _require_last_slot(self) -> None:
        """Refuse to append to a log that was replaced or emptied since it was read: its slots would look free."""
        if self._next == 0:
            return
        try:
            self.store.size(keys.log_key(self.run_id, self._next - 1))
        except MissingObjectError:
            raise self._lost_records() from None

    def _lost_records(self) -> StoreGoneError:
        why = f"record {self._next - 1} of the log of {self.run_id} is gone, which was there before"
        return StoreGoneError(url=self.store.url, why=why)

    def _slot_with(self, entry_id: str) -> Slot | None:
        return next((slot for slot in self._slots.values() if slot.entry.entry_id == entry_id), None)

    def _write(self, number: int, data: bytes) -> Slot | None:
        """The slot, when it now holds `data`; None when it holds another record."""
        key = keys.log_key(self.run_id, number)
        try:
            # A put that the client retried after a lost answer is refused because of itself.
            is_ours = self.store.put_if_absent(key, data) or self.store.get(key) == data
        except StoreWriteError:
            if not self._holds(key, data):
                raise
            is_ours = True
        except MissingObjectError:
            # S3 answers 409 to some races that neither writer wins.
            why = "the store refused the record because the slot is taken, but the slot is empty"
            raise StoreWriteError(url=self.store.url, key=key, why=why) from None
        if not is_ours:
            return None
        self._slots[number] = slot = Slot(number, decode(data, key=key))
        self._next = number + 1
        return slot

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.store.get(key) == data
        except (MissingObjectError, StoreReadError):
            return False

    def _stamp(self, *, epoch: int) -> dict[str, object]:
        return {"entry_id": uuid.uuid4().hex, "written_at": self._now(), "epoch": epoch}

    def _now(self) -> datetime:
        return self._clock.now()

    def _read_tail(self) -> bool:
        try:
            self._decode_slot(self._next, self._fetch(keys.log_key(self.run_id, self._next)))
        except MissingObjectError:
            return False
        return True

    def _fetch(self, key: str) -> bytes:
        # Limited to the largest possible record: other programs may put objects into the bucket.
        return self.store.get_range(key, 0, _MOST_RECORD_BYTES)

    def _read_slot(self, number: int) -> None:
        key = keys.log_key(self.run_id, number)
        try:
            self._decode_slot(number, self._fetch(key))
        except MissingObjectError:
            self._damage[number] = Damage(number, key, "the record is missing although later ones exist")
            self._next = max(self._next, number + 1)

    def _decode_slot(self, number: int, data: bytes) -> None:
        key = keys.log_key(self.run_id, number)
        try:
            self._slots[number] = Slot(number, decode(data, key=key))
            self._damage.pop(number, None)
        except DamagedRecordError as error:
            self._damage[number] = Damage(number, key, error.why)
        self._next = max(self._next, number + 1)


def _end_of(numbers: set[int]) -> int:
    """The slot after the last one. Writers append in order, so a key far beyond a gap does not belong to the log."""
    end = 0
    for number in sorted(numbers):
        if number - end > _WIDEST_GAP_SLOTS:
            log.warning("log records after a gap ignored gap_slots=%d from_slot=%d", _WIDEST_GAP_SLOTS, number)
            break
        end = number + 1
    return end


def _content(entry: Entry) -> bytes:
    """The content of an entry, without the fields that differ for every new entry."""
    return encode(entry.model_copy(update={"entry_id": "", "written_at": datetime.min.replace(tzinfo=UTC)}))
