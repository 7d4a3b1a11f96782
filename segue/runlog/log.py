"""The log of a run. Each record has its own slot, is written with put-if-absent, and is never rewritten."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from segue.clock import Clock, SystemClock
from segue.errors import (
    DamagedRecordError,
    LogMovedError,
    MissingObjectError,
    NothingTrustedError,
    SupersededError,
    UnreadRecordError,
)
from segue.runlog import keys
from segue.runlog.entries import Entry, body_of, encode
from segue.runlog.framing import framed
from segue.runlog.packs import Packs
from segue.runlog.reader import Damage, LogReader, Slot, Slots
from segue.runlog.signatures import SignatureChain
from segue.signing import Signer
from segue.stores.base import Store, StoreReadError, StoreWriteError

__all__ = ["Damage", "RunLog", "Slot", "Stamp"]


class Stamp(Protocol):
    """A function that returns the fields that every entry of the log has."""

    def __call__(self, *, epoch: int) -> dict[str, object]: ...


class RunLog:
    """One run's log in a store. Several threads may use a log at the same time.

    A writer appends at the slot after the last slot that it has read. If the slot is taken, the writer reads the new
    records and tries again. The writer of each record has therefore read all earlier records, and the log needs neither
    locks nor clocks.

    A log is identified by the id of its first record, and every later record contains this id. Before each append, a
    writer checks that the newest record that it has read is still in the store. If the log was deleted, an old writer
    therefore writes nothing to a new log of the same name.

    If the log has a signer, every record is signed and verified. If a record is not signed for its slot, reading raises
    an error, and no record from this read is used.
    """

    def __init__(self, store: Store, run_id: str, *, clock: Clock | None = None, signer: Signer | None = None) -> None:
        self.run_id = run_id
        self.lock = threading.RLock()
        """A thread holds this lock while it reads the log or appends to the log."""
        self.kept: object = None
        """The cached result of `read_history`."""
        self._clock = clock or SystemClock()
        self._packs = Packs(store, run_id)
        self._chain = SignatureChain(run_id, signer)
        self._slots = Slots(run_id, self._chain)
        self._reader = LogReader(store, run_id, self._slots, self._packs, clock=self._clock)
        self._is_listed = False
        self._unsure: dict[bytes, Entry] = {}
        """Records that were sent to the store but not acknowledged. The key is the content of the record."""

    @property
    def store(self) -> Store:
        """The store of the log."""
        return self._reader.store

    @store.setter
    def store(self, store: Store) -> None:
        self._reader.store = store

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All readable records that this object has read, in order."""
        return self.slots_from(0)

    def slots_from(self, index: int) -> tuple[Slot, ...]:
        """Return the readable records from this index to the end."""
        with self.lock:
            return self._slots.read(index)

    @property
    def readable(self) -> int:
        """The number of readable records."""
        return len(self._slots)

    @property
    def repairs(self) -> int:
        """Number of records that were damaged and then restored. These records were read after later records."""
        return self._slots.repairs

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The slots that cannot be read: missing slots before the end of the log, and damaged slots."""
        with self.lock:
            return self._slots.damage()

    @property
    def next_slot(self) -> int:
        """The slot at which the next record is appended."""
        return self._slots.end

    @property
    def log_id(self) -> str:
        """The unique id of this log, which is the entry id of the log's first record.

        The value is empty if the log has no record. A log of the same name in another store has another id. If a log
        was deleted and made again, the new log also has another id.
        """
        first = self._slots.first()
        return self._slots.log_id or (first.entry.entry_id if first is not None else "")

    @property
    def is_signed(self) -> bool:
        """Whether the records of this log are signed."""
        return self._chain.is_signed

    @property
    def highest_epoch(self) -> int:
        """The highest claim epoch in any record of the log."""
        return self._slots.highest_epoch

    def reload(self) -> RunLog:
        """Read the whole log: first the packs of the log, then the later records that a listing shows.

        The method returns this log. The listing also shows which slots of the log are missing. The method reads earlier
        slots again only if they are damaged.

        Raises:
            StoreReadError: the store could not be read.
            LogReplacedError: records that this object has read are no longer in the store.
            LogCutError: a part of the log was deleted.
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError, SigningKeyNeededError: a record
                was not signed for its slot with the key of the log.
        """
        with self.lock:  # Without the lock, a new record of another thread could seem lost.
            self._reader.read_all()
            self._is_listed = True
            return self

    def refresh(self) -> RunLog:
        """Read the records that were written since the last read, and return this log.

        The first call reads the whole log.

        Raises:
            StoreReadError: the store could not be read.
        """
        with self.lock:
            if not self._is_listed:  # Without a listing, a missing record would look like the end of the log.
                return self.reload()
            self._reader.read_tail()
            return self

    def require_claim(self, epoch: int) -> None:
        """Read the new records. Raise an error if the log has, or may have, a newer claim than this epoch.

        Raises:
            SupersededError: the log has a newer claim.
            UnreadRecordError: a record after the claim cannot be read, and may be a newer claim.
            LogReplacedError: the run was deleted, or deleted and started again.
            StoreReadError: the store could not be read. It is safe to call the method again.
        """
        with self.lock:
            self.refresh()
            self._reader.require_same_log()
            unread = self._slots.unread_after_claim(epoch)
            if unread:
                self._reader.read_damaged_again([damage.slot for damage in unread])
                unread = self._slots.unread_after_claim(epoch)
            if self.highest_epoch > epoch:
                raise SupersededError(epoch=epoch, newer_epoch=self.highest_epoch)
            if unread:
                raise UnreadRecordError(key=unread[0].key, epoch=epoch, why=unread[0].why)

    def append(self, build: Callable[[Stamp], Entry], *, epoch: int = 0, at: int | None = None) -> Slot:
        """Append one record to the log.

        The record from `build` may depend on the log. If another writer took the slot, the method reads the new records
        and calls `build` again. `epoch` is the claim of the writer. If the log has a newer claim, the call fails. If
        `at` is given, the record is appended only at this slot.

        If an answer of the store was lost and the caller appends the same record again, the record is written only
        once.

        After a crash, the log contains either the complete record or no part of the record.

        Raises:
            SupersededError, UnreadRecordError: the log has, or may have, a newer claim than `epoch`.
            LogReplacedError: the run was deleted, or deleted and started again.
            LogMovedError: `at` was given, and this slot is taken.
            StoreWriteError, StoreReadError: the record may or may not be written. It is safe to call the method again.
        """
        with self.lock:
            slot = self._append(build, epoch=epoch, at=at)
            self._packs.write_next(log_id=self._pack_id, end=self.next_slot)
            return slot

    def _append(self, build: Callable[[Stamp], Entry], *, epoch: int, at: int | None) -> Slot:
        while True:
            if epoch:
                self.require_claim(epoch)
            else:
                self.refresh()
                self._reader.require_same_log()
            number = self.next_slot
            if at is not None and number != at:
                raise LogMovedError(slot=at)
            built = build(self._stamp)
            content = _content(built)
            sent = self._unsure.setdefault(content, built)
            landed = None if sent is built else self._slot_with(sent.entry_id)
            entry = sent.model_copy(update={"log_id": built.log_id})
            slot = landed or self._write(number, self._signed(entry, number))
            if slot is None:
                continue  # The slot cannot be read, and it may contain this record.
            del self._unsure[content]
            if slot.entry.entry_id == entry.entry_id:
                return slot

    def _signed(self, entry: Entry, number: int) -> bytes:
        if self.is_signed and number and not self._slots:
            # Neither the id of this log nor the record before the new record is known.
            raise NothingTrustedError(run_id=self.run_id, checkpoints=0, unreadable=number)
        return framed(self._chain.signed(body_of(entry), slot=number, entry_id=entry.entry_id))

    def _slot_with(self, entry_id: str) -> Slot | None:
        return next((slot for slot in self.slots if slot.entry.entry_id == entry_id), None)

    def _write(self, number: int, data: bytes) -> Slot | None:
        """Write `data` to the slot. Return the record that is then in the slot, or None if it cannot be read."""
        key = keys.log_key(self.run_id, number)
        try:
            # If the answer of a put was lost, the retry of the client is refused because of the first try.
            is_ours = self.store.put_if_absent(key, data) or self.store.get(key) == data
        except StoreWriteError:
            if not self._holds(key, data):
                raise
            is_ours = True
        except MissingObjectError:
            # Some stores give this answer if two writers race and neither succeeds. Bucket stores retry on their own.
            why = "the store refused the record because the slot is taken, but the slot is empty"
            raise StoreWriteError(url=self.store.url, key=key, why=why) from None
        if not is_ours:
            self.refresh()
            return self._slots.get(number)
        slot = self._slots.decode(number, data)
        if slot is None:
            raise DamagedRecordError(key=key, why="the record that was just written cannot be read")
        return slot

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.store.get(key) == data
        except (MissingObjectError, StoreReadError):
            return False

    def _stamp(self, *, epoch: int) -> dict[str, object]:
        log_id = self._slots.log_id
        return {"entry_id": uuid.uuid4().hex, "written_at": self._clock.now(), "epoch": epoch, "log_id": log_id}

    @property
    def _pack_id(self) -> str:
        """The log id in the keys of this log's packs. If the first record is not readable, the value is empty."""
        first = self._slots.get(0)
        return first.entry.entry_id if first is not None else ""


def _content(entry: Entry) -> bytes:
    """Return the content of an entry without the fields that differ in each entry."""
    none = {"entry_id": "", "log_id": "", "written_at": datetime.min.replace(tzinfo=UTC)}
    return encode(entry.model_copy(update=none))
