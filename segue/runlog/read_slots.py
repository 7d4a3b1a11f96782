"""Keeps the slots of a log that were read so far, in order."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from segue.errors import DamagedRecordError
from segue.runlog import keys
from segue.runlog.entries import AnyEntry, ClaimEntry, parse
from segue.runlog.framing import unframed
from segue.runlog.signatures import SignatureChain


@dataclass(frozen=True)
class Slot:
    """A readable record and its slot number."""

    number: int
    entry: AnyEntry


@dataclass(frozen=True)
class Damage:
    """A slot that cannot be read, with the reason. Later slots are still valid."""

    slot: int
    key: str
    why: str


class Slots:
    """The readable and damaged slots of one run's log.

    Slots may be added in any order. Only one thread at a time may use this object. If a log was deleted, an old writer
    may write a record into a new log of the same name. A foreign record occupies a slot, but counts neither as readable
    nor as damaged.
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
        """The entry id of the first record, taken from the first record or from a later record.

        The text is empty if no record was read.
        """

    def __contains__(self, number: int) -> bool:
        """Whether this slot need not be read again.

        This is so if the slot is readable, or contains a record of another log.
        """
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
                are not damaged, but were not signed with the key of the log for this slot. If one of these errors is
                raised, nothing was added.
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
