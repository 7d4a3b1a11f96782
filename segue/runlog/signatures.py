"""Signs and verifies records. Each signature covers the run, the log, the slot, and the hash of the previous record.

Without the key, nobody can therefore change a record, copy a record to another slot, or insert a record. The log alone
does not show whether records are missing at its end. A process detects that records are missing only if it has read
them before, or knows the length of the log.
"""

from __future__ import annotations

import hashlib

from pydantic import Field, ValidationError

from segue.errors import (
    BadSignatureError,
    BrokenChainError,
    ForgedRecordError,
    ReplayedRecordError,
    SigningKeyNeededError,
    UnsignedLogError,
)
from segue.records import Value
from segue.runlog import keys
from segue.signing import Signer

_MARK = b',"signed":'
_MOST_SIGNATURE_BYTES = 2_000


class RecordSignature(Value):
    """The signature of a signed record, which is stored after the entry."""

    run_id: str
    log_id: str = Field(description="Id of the log: the entry id of its first record.")
    slot: int = Field(ge=0)
    previous_slot: int | None = Field(
        description="Slot of the newest record that the writer could read; None: this is the first record."
    )
    previous_sha256: str = Field(description="SHA-256 of the previous record, including its signature.")
    signature: str


class SignatureChain:
    """Signs and verifies the records of one log. Without a signer, the log is unsigned and must stay unsigned."""

    def __init__(self, run_id: str, signer: Signer | None) -> None:
        self._run_id, self._signer = run_id, signer
        self._log_id = ""
        self._hashes: dict[int, str] = {}
        self._followed: dict[int, tuple[int, str]] = {}
        """For each slot, the later slot whose record names this slot as its predecessor, and the hash in that
        record."""

    @property
    def is_signed(self) -> bool:
        return self._signer is not None

    def signed(self, body: bytes, *, slot: int, entry_id: str) -> bytes:
        """Return the body of a new record in this slot, followed by its signature."""
        if self._signer is None:
            return body
        before = max(self._hashes, default=None)
        facts = {
            "run_id": self._run_id,
            "log_id": self._log_id or entry_id,
            "slot": slot,
            "previous_slot": before,
            "previous_sha256": self._hashes[before] if before is not None else "",
        }
        unsigned = RecordSignature.model_validate(facts | {"signature": ""})
        signature = unsigned.model_copy(update={"signature": self._signer.sign(_signed_bytes(unsigned, body))})
        return body + _MARK + signature.model_dump_json().encode()

    def verified(self, body: bytes, *, slot: int) -> bytes:
        """Check that a body was signed with the key for this slot of this log. Return the entry in the body.

        Raises:
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError: the verification failed.
            SigningKeyNeededError: the record is signed, but this reader has no key.
        """
        entry, found = _split(body)
        if self._signer is None:
            if found is not None:
                raise SigningKeyNeededError(run_id=self._run_id)
            return body
        key = keys.log_key(self._run_id, slot)
        if found is None and slot == 0:
            raise UnsignedLogError(run_id=self._run_id, key=key)
        if found is None:
            raise ForgedRecordError(key=key, slot=slot, why="the record has no signature")
        try:
            self._signer.verify(_signed_bytes(found, entry), found.signature)
        except BadSignatureError as error:
            raise ForgedRecordError(key=key, slot=slot, why=f"{error.why} (key {error.key_id})") from None
        if (found.run_id, found.slot, found.log_id) != (self._run_id, slot, self._log_id or found.log_id):
            signed_for = f"record {found.slot} of run {found.run_id} in log {found.log_id[:12]}"
            raise ReplayedRecordError(key=key, slot=slot, signed_for=signed_for)
        self._join(found, hashlib.sha256(body).hexdigest())
        return entry

    def _join(self, found: RecordSignature, sha256: str) -> None:
        slot, before = found.slot, found.previous_slot
        later, expected = self._followed.get(slot, (slot, sha256))
        if expected != sha256:
            raise BrokenChainError(key=keys.log_key(self._run_id, slot), slot=slot, later_slot=later)
        if before is not None:
            known = self._hashes.get(before, found.previous_sha256)
            if known != found.previous_sha256:
                raise BrokenChainError(key=keys.log_key(self._run_id, before), slot=before, later_slot=slot)
            self._followed[before] = slot, found.previous_sha256
        self._hashes[slot] = sha256
        self._log_id = found.log_id


def _split(body: bytes) -> tuple[bytes, RecordSignature | None]:
    """Return the entry in the body of a record, and its signature. The signature is None for an unsigned record."""
    at = body.rfind(_MARK, max(len(body) - _MOST_SIGNATURE_BYTES, 0))
    if at < 0:
        return body, None
    try:
        return body[:at], RecordSignature.model_validate_json(body[at + len(_MARK) :])
    except ValidationError:
        return body, None  # The entry itself contains the text of the mark.


def _signed_bytes(facts: RecordSignature, entry: bytes) -> bytes:
    covered = facts.model_copy(update={"signature": hashlib.sha256(entry).hexdigest()})
    return b"segue log record 1\n" + covered.model_dump_json().encode()
