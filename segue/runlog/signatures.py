"""Signed records: each is signed for its run, log and slot, and follows the record before it by its hash.

So without the key no record can be changed, copied to another place, or put between two others. The log alone does not
show that records are missing at its end: only a process that has read it before, or knows its length, notices that.
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
    """The part of a signed record that follows its entry."""

    run_id: str
    log_id: str = Field(description="Id of the log's first record.")
    slot: int = Field(ge=0)
    previous_slot: int | None = Field(description="The newest record that its writer could read; None: the first one.")
    previous_sha256: str = Field(description="Hash of that record, with its own signature.")
    signature: str


class SignatureChain:
    """The signatures of one log's records. Without a signer the log is unsigned, and a signed record is refused."""

    def __init__(self, run_id: str, signer: Signer | None) -> None:
        self._run_id, self._signer = run_id, signer
        self._log_id = ""
        self._hashes: dict[int, str] = {}
        self._followed: dict[int, tuple[int, str]] = {}
        """A later record's facts about a slot: the later slot, and the hash."""

    @property
    def is_signed(self) -> bool:
        return self._signer is not None

    def signed(self, body: bytes, *, slot: int, entry_id: str) -> bytes:
        """The body of a new record in the log's next slot, with its signature."""
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
        """The entry of a record's body, once it is known to be written with the key, for this slot, in this log.

        Raises:
            ForgedRecordError, ReplayedRecordError, BrokenChainError, UnsignedLogError: it is not.
            SigningKeyNeededError: the record is signed, and there is no key.
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
            raise ForgedRecordError(key=key, slot=slot, why="it has no signature")
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
    """The entry in a record's body, and its signature; None if it has none."""
    at = body.rfind(_MARK, max(len(body) - _MOST_SIGNATURE_BYTES, 0))
    if at < 0:
        return body, None
    try:
        return body[:at], RecordSignature.model_validate_json(body[at + len(_MARK) :])
    except ValidationError:
        return body, None  # An entry that contains the same word.


def _signed_bytes(facts: RecordSignature, entry: bytes) -> bytes:
    covered = facts.model_copy(update={"signature": hashlib.sha256(entry).hexdigest()})
    return b"segue log record 1\n" + covered.model_dump_json().encode()
