"""Making one checkpoint of what several ranks store: each writes its part, rank 0 hears of all and commits."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import xxhash

from segue.checkpoints.saving.incremental import Base
from segue.checkpoints.saving.staging import Staged
from segue.checkpoints.saving.write import Written
from segue.checkpoints.saving.writer_client import ShardWriter
from segue.errors import RankMismatchError, WriterDiedError
from segue.stores.base import StoreWriteError

_POLL_SECONDS = 0.02


class Notes(Protocol):
    """Where ranks leave notes for each other."""

    def put(self, key: str, text: str) -> None: ...

    def get(self, key: str) -> str | None: ...


class RankedWriter:
    """A shard writer that answers for its rank; on rank 0, for all of them."""

    def __init__(self, inner: ShardWriter, *, rank: int, count: int, notes: Notes) -> None:
        self._inner, self._rank, self._count = inner, rank, count
        self._notes = notes
        self._own: tuple[int, Written] | None = None
        self._closed = threading.Event()

    def wait_until_ready(self) -> None:
        self._inner.wait_until_ready()

    def remember(self, step: int, base: Base) -> None:
        self._inner.remember(step, base)

    def write(
        self, staged: Staged, *, run_id: str, attempt_id: str, step: int, base_step: int | None = None
    ) -> Written | None:
        """Block until this rank's part is durable, and on rank 0 until every part is.

        None when a rank gave its part up: there will be no such checkpoint.

        Raises:
            RankMismatchError: the ranks do not hold the same state, so what they stored is not all of it.
        """
        if self._own is None or self._own[0] != step:
            written = self._write_own(staged, run_id=run_id, attempt_id=attempt_id, step=step, base_step=base_step)
            if written is None:
                return None
            self._own = (step, written)
        own = self._own[1]
        if self._rank:
            self._notes.put(_key(step, self._rank), json.dumps({"dealt": staged.dealt, "written": own.to_json()}))
            return own
        others = [self._part_of(rank, step, staged.dealt) for rank in range(1, self._count)]
        return together([own, *others])

    def give_up(self, step: int) -> None:
        """Say that this rank has no part to store."""
        self._notes.put(_key(step, self._rank), json.dumps(None))

    def stop_waiting(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._closed.set()
        self._inner.close()

    def _write_own(self, staged: Staged, *, step: int, **where: Any) -> Written | None:
        try:
            written = self._inner.write(staged, step=step, **where)
        except StoreWriteError as error:
            if self._rank:
                self._notes.put(_trouble_key(step, self._rank), error.why)
            raise
        if self._rank:
            self._notes.put(_trouble_key(step, self._rank), "")
        return written

    def _part_of(self, rank: int, step: int, dealt: str) -> Written | None:
        # Without end: should that rank be gone, the training loop finds out, and closes this.
        while (note := self._notes.get(_key(step, rank))) is None:
            trouble = self._notes.get(_trouble_key(step, rank))
            if trouble:
                raise StoreWriteError(url=f"rank {rank}", key=f"step {step}", why=trouble)
            if self._closed.wait(_POLL_SECONDS):
                raise WriterDiedError(exit_code=None, why=f"closed while rank {rank} was still writing")
        said = json.loads(note)
        if said is None:
            return None
        if said["dealt"] != dealt:
            raise RankMismatchError(rank=rank, step=step)
        return Written.from_json(said["written"])


def together(parts: Sequence[Written | None]) -> Written | None:
    """What a manifest says of the parts of all ranks; None when one is missing."""
    if any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    names = sorted({name for part in found for name in part.components})
    return Written(
        shards=tuple({shard.key: shard for part in found for shard in part.shards}.values()),
        components={name: _digest([part.components.get(name, "-") for part in found]) for name in names},
        tensor_count=sum(part.tensor_count for part in found),
        new_bytes=sum(part.new_bytes for part in found),
        saves_since_full=max(part.saves_since_full for part in found),
    )


def _digest(of_ranks: Sequence[str]) -> str:
    return xxhash.xxh3_128_hexdigest(",".join(of_ranks).encode())


def _trouble_key(step: int, rank: int) -> str:
    return f"trouble/{step}/{rank}"


def _key(step: int, rank: int) -> str:
    return f"written/{step}/{rank}"
