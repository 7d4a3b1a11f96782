"""The run's log: append-only, one record per slot, written by put-if-absent and never rewritten."""

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
from segue.runlog.entries import Entry, body_of, encode, framed
from segue.runlog.packs import Packs
from segue.runlog.read_slots import Damage, Slot, Slots
from segue.runlog.reader import LogReader
from segue.runlog.signatures import SignatureChain
from segue.signing import Signer
from segue.stores.base import Store, StoreReadError, StoreWriteError

__all__ = ["Damage", "RunLog", "Slot", "Stamp"]


class Stamp(Protocol):
    """Returns the fields that every entry has."""

    def __call__(self, *, epoch: int) -> dict[str, object]: ...


class RunLog:
    """One run's log in a store. Safe to use from several threads.

    A writer appends at the slot after the last one it has read; if that slot is taken, it reads the new records and
    tries again. So the writer of each record has read all records before it, which makes the log linear without locks
    or clocks.

    A log is identified by its first record, whose id is in every later record. Before each append, a writer checks that
    the newest record it has read is still there. So a writer that outlives its log writes nothing to another log of the
    same name.

    With a signer, every record is signed and verified; a record that is not signed for its place raises an error, and
    nothing that was read together with that record is used.
    """

    def __init__(self, store: Store, run_id: str, *, clock: Clock | None = None, signer: Signer | None = None) -> None:
        self.run_id = run_id
        self.lock = threading.RLock()
        """Held while the log is read or appended to."""
        self.kept: object = None
        """The part that `read_history` folded so far."""
        self._clock = clock or SystemClock()
        self._packs = Packs(store, run_id)
        self._chain = SignatureChain(run_id, signer)
        self._slots = Slots(run_id, self._chain)
        self._reader = LogReader(store, run_id, self._slots, self._packs, clock=self._clock)
        self._is_listed = False
        self._unsure: dict[bytes, Entry] = {}
        """Records that were sent but not acknowledged, by their content."""

    @property
    def store(self) -> Store:
        """Where the log is."""
        return self._reader.store

    @store.setter
    def store(self, store: Store) -> None:
        self._reader.store = store

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every readable record read so far, in order."""
        return self.slots_from(0)

    def slots_from(self, index: int) -> tuple[Slot, ...]:
        """The readable records, from this index on."""
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
        """The id that tells this log from every other, even one of the same name in another store or after a wipe.

        It is the entry id of the log's first record; empty while there is none.
        """
        first = self._slots.first()
        return self._slots.log_id or (first.entry.entry_id if first is not None else "")

    @property
    def is_signed(self) -> bool:
        """Whether its records are signed."""
        return self._chain.is_signed

    @property
    def highest_epoch(self) -> int:
        """The highest claim epoch in any record."""
        return self._slots.highest_epoch

    def reload(self) -> RunLog:
        """Read the whole log: its packs, and the records that a listing shows after them. Returns this log.

        A listing also shows missing slots. Slots that were read before are not read again, unless they are damaged.

        Raises:
            StoreReadError: the store could not be read.
            LogReplacedError: records that were read before are not there any more.
            LogCutError: the log was deleted, but not all of it.
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError, SigningKeyNeededError: a record
                is not what the log's key signed for its slot.
        """
        with self.lock:  # The listing needs it too: otherwise another thread's new record would seem lost.
            self._reader.read_all()
            self._is_listed = True
            return self

    def refresh(self) -> RunLog:
        """Read the records that were appended since the last read; the first time, the whole log. Returns this log.

        Raises:
            StoreReadError: the store could not be read.
        """
        with self.lock:
            if not self._is_listed:  # When reading slot by slot, a missing record would look like the end of the log.
                return self.reload()
            self._reader.read_tail()
            return self

    def require_claim(self, epoch: int) -> None:
        """Read the new records, and pass if no record in the log can be a newer claim than the one of this epoch.

        Raises:
            SupersededError: there is a newer claim.
            UnreadRecordError: a record after the claim cannot be read in any way, and may be a newer claim.
            LogReplacedError: the run was deleted, or begun again.
            StoreReadError: the store could not be read; a retry is safe.
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

        `build` is called again after every lost race, with the log refreshed, so it may depend on the log. With
        `epoch`, the writer holds that claim, and a newer claim stops it. With `at`, the record is valid only directly
        after slot `at - 1`.

        If the store's answer was lost, the record is recognized when it is appended again, and is not written twice.

        A crash before the return leaves the log as it was, or with the complete record in it.

        Raises:
            SupersededError, UnreadRecordError: as for `require_claim`, with `epoch`.
            LogReplacedError: the run was deleted, or begun again.
            LogMovedError: `at` was given, and that slot is taken.
            StoreWriteError, StoreReadError: it is not known whether the record was written; a retry is safe.
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
                continue  # That slot cannot be read, and may hold this record.
            del self._unsure[content]
            if slot.entry.entry_id == entry.entry_id:
                return slot

    def _signed(self, entry: Entry, number: int) -> bytes:
        if self.is_signed and number and not self._slots:
            # It is unknown which log this is, and which record the new one would follow.
            raise NothingTrustedError(run_id=self.run_id, checkpoints=0, unreadable=number)
        return framed(self._chain.signed(body_of(entry), slot=number, entry_id=entry.entry_id))

    def _slot_with(self, entry_id: str) -> Slot | None:
        return next((slot for slot in self.slots if slot.entry.entry_id == entry_id), None)

    def _write(self, number: int, data: bytes) -> Slot | None:
        """The record that the slot holds now: `data`, or another writer's record; None if it cannot be read."""
        key = keys.log_key(self.run_id, number)
        try:
            # A put that the client retried after a lost answer is refused because of its own first try.
            is_ours = self.store.put_if_absent(key, data) or self.store.get(key) == data
        except StoreWriteError:
            if not self._holds(key, data):
                raise
            is_ours = True
        except MissingObjectError:
            # Some stores answer like this in races that neither writer wins; stores in buckets retry by themselves.
            why = "the store refused the record because the slot is taken, but the slot is empty"
            raise StoreWriteError(url=self.store.url, key=key, why=why) from None
        if not is_ours:
            self.refresh()
            return self._slots.get(number)
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
        log_id = self._slots.log_id
        return {"entry_id": uuid.uuid4().hex, "written_at": self._clock.now(), "epoch": epoch, "log_id": log_id}

    @property
    def _pack_id(self) -> str:
        """The id under which this log's packs are found; empty while the first record itself is not readable."""
        first = self._slots.get(0)
        return first.entry.entry_id if first is not None else ""


def _content(entry: Entry) -> bytes:
    """The content of an entry, without the fields that differ for every new entry."""
    none = {"entry_id": "", "log_id": "", "written_at": datetime.min.replace(tzinfo=UTC)}
    return encode(entry.model_copy(update=none))
