"""A store that kills its own process at a named operation. Tests use it to cause crashes."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import Field

from segue.clock import SystemClock
from segue.errors import DamagedRecordError
from segue.records import Value
from segue.runlog import keys
from segue.runlog.entries import AnyEntry, PruneEntry, decode
from segue.stores.base import STAGED, ObjectInfo, Store
from segue.stores.local import LocalStore

T = TypeVar("T")

Data = bytes | memoryview

Half = Callable[[str, Data], bool]
"""This function leaves the same data as an interrupted put.

It returns False if the object is written in a single request.
"""

OnAppend = Callable[[int, AnyEntry], None]
"""This function is called with the slot and the record after each append that the store has confirmed, before the
caller continues.
"""


class Operation(StrEnum):
    """An operation of a trainer on its store."""

    CLAIM_APPEND = "claim append"
    RESTORE_READ = "restore read"
    QUARANTINE_APPEND = "quarantine append"
    VERDICT_APPEND = "verdict append"
    HEARTBEAT_PUT = "heartbeat put"
    SHARD_PUT = "shard put"
    INDEX_PUT = "index put"
    PREPARED_PUT = "prepared commit put"
    CURVE_PUT = "curve put"
    COMMIT_APPEND = "commit append"
    SEAL_APPEND = "seal append"
    PRUNE_APPEND = "prune append"
    PRUNE_DELETE = "prune delete"
    SWEEP_DROP = "sweep drop"
    SWEEP_DELETE = "sweep delete"
    REPORT_APPEND = "report append"


class Moment(StrEnum):
    """The moment within an operation at which the process is killed."""

    BEFORE = "before"
    """At this moment, the store has received nothing."""
    MIDDLE = "middle"
    """At this moment, the store has received some bytes, or the request is on its way."""
    AFTER = "after"
    """At this moment, the store has received all bytes, and the caller has no answer yet."""


class KillPoint(Value):
    """A point of a trainer's work at which the trainer is killed."""

    operation: Operation
    moment: Moment
    number: int = Field(
        1, ge=1, description="Number of the operation among operations of the same name since the trainer's start."
    )
    flight_seconds: float = Field(
        0.002, ge=0, description="Seconds from the start of an operation to the kill, if it is a single request."
    )


class KillingStore:
    """Wraps a real store and kills this process with SIGKILL at the point `at`.

    If `at` is None, the store only observes. `half` leaves the same data as an interrupted put. If `half` is None, and
    for operations that are a single request, the kill comes while the operation runs in another thread.
    """

    def __init__(
        self, inner: Store, *, at: KillPoint | None, half: Half | None = None, on_append: OnAppend | None = None
    ) -> None:
        self.inner, self.at, self.half, self.on_append = inner, at, half, on_append
        self._lock = threading.Lock()
        self._seen = 0
        self._is_sweeping = False

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    def put_if_absent(self, key: str, data: bytes) -> bool:
        entry = _entry_of(key, data)
        if entry is None:
            return self.inner.put_if_absent(key, data)

        def append() -> bool:
            created = self.inner.put_if_absent(key, data)
            if created and self.on_append is not None:
                self.on_append(_slot_of(key), entry)
            return created

        if isinstance(entry, PruneEntry):
            self._is_sweeping = False
        return self._do(_append_of(entry), append, half=lambda: self._cut(key, data))

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        def put() -> None:
            self.inner.put(key, data, durable=durable)

        self._do(_put_of(key), put, half=lambda: self._cut(key, data))

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.get_range(key, start, length)

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        return self._do(Operation.RESTORE_READ, lambda: self.inner.read_into(key, start, into))

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        # A sweep begins with a listing of all attempts; a deletion without this listing follows a prune record.
        self._is_sweeping = self._is_sweeping or prefix.endswith("/attempts/")
        return self.inner.list_objects(prefix, after=after)

    def folders(self) -> list[str]:
        return self.inner.folders()

    def delete(self, keys: list[str]) -> None:
        if not keys:
            return

        def half() -> bool:
            self.inner.delete(keys[: (len(keys) + 1) // 2])
            return True

        operation = Operation.SWEEP_DELETE if self._is_sweeping else Operation.PRUNE_DELETE
        self._do(operation, lambda: self.inner.delete(keys), half=half)

    def drop_unfinished(self, prefix: str) -> None:
        self._do(Operation.SWEEP_DROP, lambda: self.inner.drop_unfinished(prefix))

    def check(self) -> None:
        self.inner.check()

    def _do(self, operation: Operation | None, do: Callable[[], T], *, half: Callable[[], bool] | None = None) -> T:
        moment = self._moment_of(operation)
        if moment is Moment.BEFORE:
            die()
        if moment is Moment.MIDDLE and (half is None or not half()):
            threading.Thread(target=do, daemon=True).start()
            assert self.at is not None
            SystemClock().sleep(self.at.flight_seconds)
        if moment is Moment.MIDDLE:
            die()
        done = do()
        if moment is Moment.AFTER:
            die()
        return done

    def _moment_of(self, operation: Operation | None) -> Moment | None:
        if self.at is None or operation is not self.at.operation:
            return None
        with self._lock:
            self._seen += 1
            return self.at.moment if self._seen == self.at.number else None

    def _cut(self, key: str, data: Data) -> bool:
        return self.half is not None and self.half(key, data)


def half_a_file(store: LocalStore) -> Half:
    """A `Half` for a folder. It leaves half of the bytes, under a name that no reader looks up."""

    def half(key: str, data: Data) -> bool:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / f"{STAGED}{uuid.uuid4().hex}").write_bytes(data[: len(data) // 2])
        return True

    return half


def die() -> NoReturn:
    """End this process at once, as if its machine were lost. Nothing is flushed or closed."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def _entry_of(key: str, data: bytes) -> AnyEntry | None:
    if keys.slot_of(key) is None:
        return None
    try:
        return decode(data, key=key)
    except DamagedRecordError:
        return None


def _slot_of(key: str) -> int:
    slot = keys.slot_of(key)
    assert slot is not None
    return slot


def _append_of(entry: AnyEntry) -> Operation | None:
    name = f"{entry.kind} append"
    return Operation(name) if name in set(Operation) else None


def _put_of(key: str) -> Operation | None:
    name = Path(key).name
    if name == "heartbeat.json":
        return Operation.HEARTBEAT_PUT
    if name.endswith(".parquet"):
        return Operation.CURVE_PUT
    if name.endswith(".safetensors"):
        return Operation.SHARD_PUT
    if name.endswith(".commit.json"):
        return Operation.PREPARED_PUT
    return Operation.INDEX_PUT if name.startswith("rank-") else None
