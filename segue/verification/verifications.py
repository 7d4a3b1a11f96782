"""Keeps the log of a run's verifications in the store.

The records are written with put-if-absent, like the records of a run's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from segue.clock import Clock
from segue.runlog import keys
from segue.runlog.entries import Entry, VerificationEntry
from segue.runlog.log import Stamp
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores.base import Store
from segue.verification.verification_record import Verification, newest_of_each


class VerificationsLog:
    """The verifications of one run's spec in a store."""

    def __init__(self, store: Store, run_id: str, *, spec: StoreSpec | None = None, clock: Clock | None = None) -> None:
        """`spec` is the spec of the store. The key of the spec signs the records, and verifies signed records."""
        self.store, self.run_id = store, run_id
        self._log = log_in(store, keys.verifications_folder(run_id), spec or StoreSpec(), clock=clock)

    @property
    def log_id(self) -> str:
        """The unique id of this log. The id is empty while the log has no record."""
        return self._log.log_id

    def read(self) -> tuple[Verification, ...]:
        """Return the verifications, oldest first, one for each scheduled time.

        Raises:
            StoreReadError: the store could not be read.
        """
        self._log.reload()
        return newest_of_each(tuple(self._records()))

    def add(self, verification: Verification) -> tuple[Verification, ...]:
        """Record a verification, unless an equal verification is the newest of its scheduled time.

        Return all verifications.

        Raises:
            StoreWriteError, StoreReadError: it is not known whether the record was written. It is safe to call the
                method again.
        """

        def build(stamp: Stamp) -> Entry:
            if verification in newest_of_each(tuple(self._records())):
                raise _RecordedError
            return VerificationEntry.model_validate(stamp(epoch=0) | {"record": verification.model_dump(mode="json")})

        with suppress(_RecordedError):
            self._log.append(build)
        return self.read()

    def _records(self) -> Iterator[Verification]:
        for slot in self._log.slots:
            if isinstance(slot.entry, VerificationEntry):
                yield Verification.model_validate(slot.entry.record)


class _RecordedError(Exception):
    """An equal verification is already recorded."""
