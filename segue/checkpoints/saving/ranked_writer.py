"""Writes one checkpoint from several ranks. Each rank writes its shard, and rank 0 merges all results."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Protocol

import xxhash

from segue.checkpoints.format.index import Base
from segue.checkpoints.saving.staging import Staged
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.checkpoints.saving.written import Save, Written
from segue.errors import RankMismatchError
from segue.stores.base import StoreWriteError

_POLL_SECONDS = 0.02


class Notes(Protocol):
    """A key-value store that all ranks share."""

    def put(self, key: str, text: str) -> None: ...

    def get(self, key: str) -> str | None: ...


class RankedWriter(ShardWriter):
    """A shard writer that returns the result of its own rank.

    On rank 0, the writer returns the merged result of all ranks.
    """

    def __init__(self, inner: ShardWriter, *, rank: int, count: int, notes: Notes) -> None:
        self._inner, self._rank, self._count = inner, rank, count
        self._notes = notes
        self._own: tuple[tuple[int, str], Written] | None = None
        self._closed = threading.Event()

    def wait_until_ready(self) -> None:
        self._inner.wait_until_ready()

    def remember(self, step: int, base: Base) -> None:
        self._inner.remember(step, base)

    def write(self, staged: Staged, save: Save) -> Written | None:
        """Block until the shard of this rank is durable. On rank 0, block until the shards of all ranks are durable.

        Return None if a rank gave up the save, or has not stored its part when `stop_waiting` is called. In this case
        there will be no checkpoint.

        Raises:
            RankMismatchError: the states of the ranks differ, so the shards do not form one whole state.
        """
        step = save.step
        if self._own is None or self._own[0] != (step, staged.partition_hash):
            written = self._write_own(staged, save)
            if written is None:
                return None
            self._own = ((step, staged.partition_hash), written)
        own = self._own[1]
        if self._rank:
            self._notes.put(
                _key(step, self._rank), json.dumps({"partition_hash": staged.partition_hash, "written": own.to_json()})
            )
            return own
        if not staged.partition_hash:
            return own  # This rank has stored the whole state alone.
        others = [self._written_by(rank, step, staged.partition_hash) for rank in range(1, self._count)]
        return merged([own, *others])

    def give_up(self, step: int) -> None:
        """Tell the other ranks that this rank stores nothing for this step."""
        self._notes.put(_key(step, self._rank), json.dumps(None))

    def stop_waiting(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._closed.set()
        self._inner.close()

    def _write_own(self, staged: Staged, save: Save) -> Written | None:
        try:
            written = self._inner.write(staged, save)
        except StoreWriteError as error:
            if self._rank:
                self._notes.put(_trouble_key(save.step, self._rank), error.why)
            raise
        if self._rank:
            self._notes.put(_trouble_key(save.step, self._rank), "")
        return written

    def _written_by(self, rank: int, step: int, partition_hash: str) -> Written | None:
        # There is no timeout: if that rank is lost, the training loop detects this and calls `stop_waiting`.
        while (note := self._notes.get(_key(step, rank))) is None:
            if self._closed.is_set():
                return None
            trouble = self._notes.get(_trouble_key(step, rank))
            if trouble:
                raise StoreWriteError(url=f"rank {rank}", key=f"step {step}", why=trouble)
            self._closed.wait(_POLL_SECONDS)
        report = json.loads(note)
        if report is None:
            return None
        if report["partition_hash"] != partition_hash:
            raise RankMismatchError(rank=rank, step=step)
        return Written.from_json(report["written"])


def merged(by_rank: Sequence[Written | None]) -> Written | None:
    """Return the merged result of all ranks. Return None if a rank wrote nothing."""
    found = [written for written in by_rank if written is not None]
    if len(found) < len(by_rank):
        return None
    names = sorted({name for written in found for name in written.components})
    return Written(
        shards=tuple({shard.key: shard for written in found for shard in written.shards}.values()),
        components={name: _digest([written.components.get(name, "-") for written in found]) for name in names},
        tensor_count=sum(written.tensor_count for written in found),
        new_bytes=sum(written.new_bytes for written in found),
        saves_since_full=max(written.saves_since_full for written in found),
    )


def _digest(of_ranks: Sequence[str]) -> str:
    return xxhash.xxh3_128_hexdigest(",".join(of_ranks).encode())


def _trouble_key(step: int, rank: int) -> str:
    return f"trouble/{step}/{rank}"


def _key(step: int, rank: int) -> str:
    return f"written/{step}/{rank}"
