"""The run's log: append-only, one record per slot, written by put-if-absent and never rewritten."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Protocol

from segue.clock import Clock, SystemClock
from segue.errors import (
    BrokenChainError,
    DamagedRecordError,
    FencedError,
    ForgedRecordError,
    LogMovedError,
    MissingObjectError,
    NothingTrustedError,
    ReplayedRecordError,
)
from segue.runlog import keys
from segue.runlog.entries import Entry, body_of, encode, framed
from segue.runlog.packs import Packs
from segue.runlog.signatures import SignatureChain
from segue.runlog.slots import Damage, Slot, Slots
from segue.signing import Signer
from segue.stores.base import ObjectInfo, Store, StoreGoneError, StoreReadError, StoreWriteError
from segue.stores.parallel import read_each

__all__ = ["Damage", "RunLog", "Slot", "Stamp"]

log = logging.getLogger(__name__)

_MOST_RECORD_BYTES = 64 * 2**20
_WIDEST_GAP_SLOTS = 1_000
"""Longest gap of missing records that is read. A key far beyond it is foreign, and must not cost a million reads."""


class Stamp(Protocol):
    """Returns the fields that every entry has."""

    def __call__(self, *, epoch: int) -> dict[str, object]: ...


class RunLog:
    """One run's log in a store. Safe to use from several threads.

    A writer appends at the slot after the last one it has read; if that slot is taken, it reads on. So the writer of
    each record has read all records before it, which makes the log linear without locks or clocks.

    With a signer, every record is signed and verified; one that is not signed for its place raises an error, and
    nothing that was read with it is used.
    """

    def __init__(self, store: Store, run_id: str, *, clock: Clock | None = None, signer: Signer | None = None) -> None:
        self.store, self.run_id = store, run_id
        self.lock = threading.RLock()
        """Held while the log is read or appended to."""
        self.kept: object = None
        """What `read_history` folded so far."""
        self._clock = clock or SystemClock()
        self._packs = Packs(store, run_id)
        self._chain = SignatureChain(run_id, signer)
        self._slots = Slots(run_id, self._chain)
        self._is_listed = False
        self._unsure: dict[bytes, Entry] = {}
        """Records that were sent without an answer, by their content."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every readable record read so far, in order."""
        return self.slots_from(0)

    def slots_from(self, index: int) -> tuple[Slot, ...]:
        """The readable records from the one with this index on."""
        with self.lock:
            return self._slots.read(index)

    @property
    def readable(self) -> int:
        """The number of readable records."""
        return len(self._slots)

    @property
    def repairs(self) -> int:
        """How many records were read after later ones: damaged records that were restored."""
        return self._slots.repairs

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Slots that cannot be read: missing ones before the end, and damaged ones."""
        with self.lock:
            return self._slots.damage()

    @property
    def next_slot(self) -> int:
        """The slot at which the next append is tried."""
        return self._slots.end

    @property
    def log_id(self) -> str:
        """What tells this log from every other, also from one of the same name in another store or after a wipe.

        It is the id of the log's first record; empty while there is none.
        """
        first = self._slots.first()
        return first.entry.entry_id if first is not None else ""

    @property
    def is_signed(self) -> bool:
        """Whether its records are signed."""
        return self._chain.is_signed

    @property
    def highest_epoch(self) -> int:
        """The highest claim epoch in any record."""
        return self._slots.highest_epoch

    def reload(self) -> RunLog:
        """Read the whole log: its packs, and what a listing shows after them. Returns this log.

        A listing also shows missing slots. Slots that were read before are not read again, unless they are damaged.

        Raises:
            StoreReadError: the store could not be read.
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError, SigningKeyNeededError: a record
                is not what the log's key signed for its slot.
        """
        with self.lock:  # Listed under it too: a record that another thread appends meanwhile would seem to be lost.
            if self.next_slot == 0:
                self._read_packs()
            start = self.next_slot
            sizes = self._list_from(start - 1)
            if start and start - 1 not in sizes:
                raise self._lost_records()
            end = _end_of(set(sizes), start=start)
            # A damaged slot is read again: a person may have restored it.
            self._read_slots((number for number in range(end) if number not in self._slots), sizes)
            self._is_listed = True
            return self.refresh()

    def refresh(self) -> RunLog:
        """Read the records appended since; the first time, the whole log. Returns this log.

        Raises:
            StoreReadError: the store could not be read.
        """
        with self.lock:
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
        with self.lock:
            slot = self._append(build, epoch=epoch, at=at)
            self._packs.write_next(log_id=self._pack_id, end=self.next_slot)
            return slot

    def _append(self, build: Callable[[Stamp], Entry], *, epoch: int, at: int | None) -> Slot:
        while True:
            self.refresh()
            if epoch and self.highest_epoch > epoch:
                raise FencedError(epoch=epoch, newer_epoch=self.highest_epoch)
            number = self.next_slot
            if at is not None and number != at:
                raise LogMovedError(slot=at)
            self._require_last_slot()
            built = build(self._stamp)
            content = _content(built)
            entry = self._unsure.setdefault(content, built)
            landed = None if entry is built else self._slot_with(entry.entry_id)
            slot = landed or self._write(number, self._signed(entry, number))
            del self._unsure[content]
            if slot is not None:
                return slot

    def _signed(self, entry: Entry, number: int) -> bytes:
        if self.is_signed and number and not self._slots:
            # Which log this is, and what the record follows, is not known.
            raise NothingTrustedError(run_id=self.run_id, checkpoints=0, unreadable=number)
        return framed(self._chain.signed(body_of(entry), slot=number, entry_id=entry.entry_id))

    def _require_last_slot(self) -> None:
        """Refuse to append to a log that was replaced or emptied since it was read: its slots would look free."""
        if self.next_slot == 0:
            return
        try:
            self.store.size(keys.log_key(self.run_id, self.next_slot - 1))
        except MissingObjectError:
            raise self._lost_records() from None

    def _lost_records(self) -> StoreGoneError:
        why = f"record {self.next_slot - 1} of the log of {self.run_id} is gone, which was there before"
        return StoreGoneError(url=self.store.url, why=why)

    def _slot_with(self, entry_id: str) -> Slot | None:
        return next((slot for slot in self.slots if slot.entry.entry_id == entry_id), None)

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
        slot = self._slots.decode(number, data)
        if slot is None:
            raise DamagedRecordError(key=key, why="it cannot be read as it was written")
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

    def _list_from(self, number: int) -> dict[int, int]:
        """The sizes of the records from this slot on, by slot."""
        after = keys.log_key(self.run_id, number - 1) if number > 0 else None
        listed = self.store.list_objects(keys.log_prefix(self.run_id), after=after)
        slots = ((keys.slot_of(item.key), item.size_bytes) for item in listed)
        return {slot: size_bytes for slot, size_bytes in slots if slot is not None}

    @property
    def _pack_id(self) -> str:
        """The id under which this log's packs are found; empty while the first record itself is not readable."""
        first = self._slots.get(0)
        return first.entry.entry_id if first is not None else ""

    def _read_packs(self) -> None:
        """Read the beginning of a log that was not read before from its packs, if it has any."""
        packs = self._packs.find()
        if packs and self._read_tail():
            log_id = self._pack_id
            try:
                for number, data in self._packs.read(packs.get(log_id, ()), log_id=log_id):
                    if number not in self._slots:
                        self._slots.decode(number, data)
            except (ForgedRecordError, ReplayedRecordError, BrokenChainError) as error:
                log.warning("pack with a forged record ignored reason=%s", error)  # The record itself is read instead.

    def _read_slots(self, numbers: Iterable[int], sizes: dict[int, int]) -> None:
        named = {keys.log_key(self.run_id, number): number for number in numbers}
        wanted = (ObjectInfo(key, sizes.get(number, 0)) for key, number in named.items())
        # Limited to the largest possible record: other programs may put objects into the bucket.
        for key, data in read_each(self.store, wanted, most_bytes=_MOST_RECORD_BYTES):
            if data is not None:
                self._slots.decode(named[key], data)
            else:
                self._slots.add_damage(named[key], "the record is missing although later ones exist")

    def _read_tail(self) -> bool:
        number = self.next_slot
        try:
            self._slots.decode(number, self.store.get_range(keys.log_key(self.run_id, number), 0, _MOST_RECORD_BYTES))
        except MissingObjectError:
            return False
        return True


def _end_of(numbers: set[int], *, start: int) -> int:
    """The slot after the last one. Writers append in order, so a key far beyond a gap does not belong to the log."""
    end = start
    for number in sorted(numbers):
        if number - end > _WIDEST_GAP_SLOTS:
            log.warning("log records after a gap ignored gap_slots=%d from_slot=%d", _WIDEST_GAP_SLOTS, number)
            break
        end = number + 1
    return end


def _content(entry: Entry) -> bytes:
    """The content of an entry, without the fields that differ for every new entry."""
    return encode(entry.model_copy(update={"entry_id": "", "written_at": datetime.min.replace(tzinfo=UTC)}))
