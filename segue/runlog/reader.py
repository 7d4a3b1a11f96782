"""Reads a log: first the packs, then a listing, then the records slot by slot.

The reader reads damaged or missing records again, without the page cache or with new connections.
"""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from segue.clock import Clock
from segue.errors import (
    BrokenChainError,
    DamagedRecordError,
    ForgedRecordError,
    LogCutError,
    LogReplacedError,
    MissingObjectError,
    ReplayedRecordError,
)
from segue.runlog import keys
from segue.runlog.entries import AnyEntry, ClaimEntry, parse
from segue.runlog.framing import entry_id_in, is_intact, unframed
from segue.runlog.packs import Packs
from segue.runlog.signatures import SignatureChain
from segue.stores.base import ObjectInfo, Store, StoreReadError, ways_to
from segue.stores.parallel import read_each

log = logging.getLogger(__name__)

_MOST_RECORD_BYTES = 64 * 2**20
_WIDEST_GAP_SLOTS = 1_000
"""Longest gap of missing records, in slots, after which the reader reads further records.

A key after a much longer gap does not belong to the log and must not cause many reads.
"""
_FIRST = (0, 1)
"""The two slots whose absence means that the log was deleted. A single lost object therefore does not end a run."""
_PAUSES_SECONDS = (0.0, 0.02, 0.1, 0.3)
"""Pauses in seconds before each further read of an unreadable record. After all reads, the record counts as damaged.
"""


class LogReader:
    """Reads the records of one run's log into its slots. Only one thread at a time may use a reader."""

    def __init__(self, store: Store, run_id: str, slots: Slots, packs: Packs, *, clock: Clock) -> None:
        self.store, self._run_id, self._slots, self._packs, self._clock = store, run_id, slots, packs, clock
        self._surely_damaged: set[int] = set()

    def read_all(self) -> None:
        """Read all new records. Read damaged records again, because a person may have restored them.

        Raises:
            StoreReadError: the store could not be read.
            LogReplacedError: records that this reader has read are no longer in the store.
            LogCutError: a part of the log was deleted.
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError, SigningKeyNeededError: a record
                was not signed for its slot with the key of the log.
        """
        slots = self._slots
        if slots.end == 0:
            self._read_packs()
        start = slots.end
        sizes = self._list_from(start - 1)
        if start and start - 1 not in sizes:
            self.require_same_log()
        end = _end_of(set(sizes), start=start)
        self._read_slots([number for number in range(end) if number not in slots], sizes)
        self.read_tail()

    def read_tail(self) -> None:
        """Read the records that were appended since the last read.

        Raises:
            All errors that `read_all` raises.
        """
        while self._read_next():
            pass

    def require_same_log(self) -> None:
        """Check that the log was not deleted or replaced since it was read.

        The store must still have the first and the newest record that this reader has read. If both records are
        damaged, other records are compared.

        Raises:
            LogReplacedError: in repeated reads, a compared record was missing or was replaced by another record.
            StoreReadError: the store could not be read, or no record of the log could be read.
        """
        read = self._slots.read()
        if not read:
            return
        first_and_newest, others = {read[0].number: read[0], read[-1].number: read[-1]}, read[1:-1]
        answers = [self._is_in_place(slot) for slot in first_and_newest.values()]
        is_sure = any(answers) or any(self._is_in_place(slot) for slot in others)
        if not is_sure:
            raise StoreReadError(url=self.store.url, key=keys.log_prefix(self._run_id), why="all records are damaged")

    def _is_in_place(self, slot: Slot) -> bool:
        """Whether the store still has the record that was read from this slot. The result is False for a damaged
        record.
        """
        key, found = keys.log_key(self._run_id, slot.number), None
        for store in self._ways():
            found = _found(store, key)
            if found is not None and is_intact(found):
                break
        if found is not None and not is_intact(found):
            return False
        if found is None or entry_id_in(found) != slot.entry.entry_id:
            facts = {"run_id": self._run_id, "url": self.store.url, "log_id": self._slots.log_id}
            raise LogReplacedError(key=key, is_there=found is not None, **facts)
        return True

    def read_damaged_again(self, numbers: Iterable[int]) -> None:
        """Read these slots again, without the page cache or with new connections, until they are readable or all reads
        failed.

        Raises:
            All errors that `read_all` raises.
        """
        doubtful = [number for number in numbers if number not in self._slots]
        for store in list(self._ways())[1:] if doubtful else ():
            for number in doubtful:
                data = _found(store, keys.log_key(self._run_id, number))
                if data is not None:
                    self._slots.decode(number, data)
            doubtful = [number for number in doubtful if number not in self._slots]
            if not doubtful:
                return
        self._surely_damaged.update(doubtful)

    def _ways(self) -> Iterator[Store]:
        """Yield the store once for each read of a record. Before each read except the first, pause."""
        pauses = (0.0, *_PAUSES_SECONDS)
        for pause, store in zip(pauses, ways_to(self.store, reads=len(pauses)), strict=True):
            if pause:
                self._clock.sleep(pause)
            yield store

    def _read_new_damage_again(self) -> None:
        damaged = (damage.slot for damage in self._slots.damage())
        self.read_damaged_again([number for number in damaged if number not in self._surely_damaged])

    def _list_from(self, number: int) -> dict[int, int]:
        """Return the size in bytes of each record, from this slot on. The key is the slot."""
        after = keys.log_key(self._run_id, number - 1) if number > 0 else None
        listed = self.store.list_objects(keys.log_prefix(self._run_id), after=after)
        slots = ((keys.slot_of(item.key), item.size_bytes) for item in listed)
        return {slot: size_bytes for slot, size_bytes in slots if slot is not None}

    def _read_packs(self) -> None:
        """Read the beginning of the log from its packs, if the log has packs."""
        packs = self._packs.find()
        if packs and self._read_next():
            first = self._slots.get(0)
            log_id = first.entry.entry_id if first is not None else ""
            try:
                for number, data in self._packs.read(packs.get(log_id, ()), log_id=log_id):
                    if number not in self._slots:
                        self._slots.decode(number, data)
            except (ForgedRecordError, ReplayedRecordError, BrokenChainError) as error:
                # The records themselves are read instead.
                log.warning("pack with a forged record ignored reason=%s", error)

    def _read_slots(self, numbers: Iterable[int], sizes: dict[int, int]) -> None:
        named = {keys.log_key(self._run_id, number): number for number in numbers}
        wanted = (ObjectInfo(key, sizes.get(number, 0)) for key, number in named.items())
        missing = []
        # The size is limited to that of the largest record, because other programs may put objects into the bucket.
        for key, data in read_each(self.store, wanted, most_bytes=_MOST_RECORD_BYTES):
            if data is not None:
                self._slots.decode(named[key], data)
            else:
                missing.append(named[key])
        # If a listed slot is missing, it is the end of the log or an error of the listing.
        for number in (number for number in missing if number < self._slots.end):
            self._slots.add_damage(number, "the record is missing, but later records exist")
        self._read_new_damage_again()
        if self._slots.end > len(_FIRST) and all(n in missing and n not in self._slots for n in _FIRST):
            first = self._slots.first()
            raise LogCutError(
                run_id=self._run_id, url=self.store.url, begins_with=first.number if first is not None else None
            )

    def _read_next(self) -> bool:
        """Read the slot after the last known slot. Return whether the slot contains a record."""
        number = self._slots.end
        data = _found(self.store, keys.log_key(self._run_id, number))
        if data is None:
            return False
        if self._slots.decode(number, data) is None:
            if self._slots.is_foreign(number):
                self.require_same_log()  # Is it the record or this reader that belongs to another log?
            self._read_new_damage_again()
        return True


def _found(store: Store, key: str) -> bytes | None:
    try:
        return store.get_range(key, 0, _MOST_RECORD_BYTES)
    except MissingObjectError:
        return None


def _end_of(numbers: set[int], *, start: int) -> int:
    """Return the slot after the last slot of the log.

    Writers append records in order, so a key far beyond a gap does not belong to the log.
    """
    end = start
    for number in sorted(numbers):
        if number - end > _WIDEST_GAP_SLOTS:
            log.warning("ignoring the log records after a gap gap_slots=%d from_slot=%d", _WIDEST_GAP_SLOTS, number)
            break
        end = number + 1
    return end


@dataclass(frozen=True)
class Slot:
    """A readable record and its slot number."""

    number: int
    entry: AnyEntry


@dataclass(frozen=True)
class Damage:
    """An unreadable slot, with the reason. Later slots are still valid."""

    slot: int
    key: str
    why: str


class Slots:
    """The readable and damaged slots of one run's log.

    Slots may be added in any order. Only one thread at a time may use this object. If a log was deleted, an old writer
    may write a record into a new log of the same name. Such a foreign record occupies a slot, but is neither readable
    nor damaged.
    """

    def __init__(self, run_id: str, chain: SignatureChain) -> None:
        self._run_id, self._chain = run_id, chain
        self._readable: dict[int, Slot] = {}
        self._in_order: list[Slot] = []
        self._damage: dict[int, Damage] = {}
        self._foreign: set[int] = set()
        self._claims: dict[int, int] = {}
        self.repairs = 0
        """Number of records that were added after later records, because they were damaged and then restored."""
        self.highest_epoch = 0
        self.end = 0
        """The slot after the last known slot."""
        self.log_id = ""
        """The id of the log, from any record that was read. The text is empty if no record was read."""

    def __contains__(self, number: int) -> bool:
        """Whether this slot need not be read again, because it is readable or contains a record of another log."""
        return number in self._readable or number in self._foreign

    def __len__(self) -> int:
        return len(self._in_order)

    def get(self, number: int) -> Slot | None:
        return self._readable.get(number)

    def first(self) -> Slot | None:
        return self._in_order[0] if self._in_order else None

    def read(self, index: int = 0) -> tuple[Slot, ...]:
        """Return the readable slots in order, from this index to the end."""
        return tuple(self._in_order[index:])

    def damage(self) -> tuple[Damage, ...]:
        return tuple(self._damage[number] for number in sorted(self._damage))

    def unread_after_claim(self, epoch: int) -> tuple[Damage, ...]:
        """Return the unreadable slots after the claim of this epoch. Each of these slots may contain a newer claim."""
        claimed_in = self._claims.get(epoch, -1)
        return tuple(damage for damage in self.damage() if damage.slot > claimed_in)

    def is_foreign(self, number: int) -> bool:
        """Whether the slot contains a record of another log."""
        return number in self._foreign

    def decode(self, number: int, data: bytes) -> Slot | None:
        """Add a slot with these bytes. Return None if the bytes are damaged or belong to another log.

        Raises:
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError, SigningKeyNeededError: the bytes
                are complete, but their signature is missing, is wrong or cannot be checked. Nothing was added.
        """
        key = keys.log_key(self._run_id, number)
        try:
            entry = parse(self._chain.verified(unframed(data, key=key), slot=number), key=key)
        except DamagedRecordError as error:
            self.add_damage(number, error.why)
            return None
        if not self._is_of_this_log(number, entry):
            self._foreign.add(number)
            self._damage.pop(number, None)
            self._pass_foreign()
            return None
        return self._add(number, entry)

    def add_damage(self, number: int, why: str) -> None:
        self._damage[number] = Damage(number, keys.log_key(self._run_id, number), why)
        self.end = max(self.end, number + 1)
        self._pass_foreign()

    def _is_of_this_log(self, number: int, entry: AnyEntry) -> bool:
        named = entry.log_id or (entry.entry_id if number == 0 else "")
        self.log_id = self.log_id or named
        return named in ("", self.log_id)

    def _add(self, number: int, entry: AnyEntry) -> Slot:
        slot = Slot(number, entry)
        at = bisect(self._in_order, number, key=lambda other: other.number)
        self.repairs += at < len(self._in_order)
        self._in_order.insert(at, slot)
        self._readable[number] = slot
        self._damage.pop(number, None)
        self.highest_epoch = max(self.highest_epoch, entry.epoch)
        if isinstance(entry, ClaimEntry):
            self._claims[entry.epoch] = number
        self.end = max(self.end, number + 1)
        self._pass_foreign()
        return slot

    def _pass_foreign(self) -> None:
        while self.end in self._foreign:
            self.end += 1
