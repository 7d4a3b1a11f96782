"""Copies a checkpoint to a local folder, for readers that may need it after retention has pruned the original."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.errors import MissingObjectError, MissingShardError
from segue.records import Manifest
from segue.shard import Shard
from segue.stores.base import Store, StoreWriteError
from segue.stores.local import LocalStore

log = logging.getLogger(__name__)

_PIECE_BYTES = 64 * 2**20


@contextmanager
def copied(store: Store, *, run_id: str, manifest: Manifest) -> Iterator[LocalStore]:
    """A block with a temporary folder store that contains a copy of the files of this checkpoint, under the same keys.

    The folder is deleted when the block ends. The bytes are verified when they are read, as in every store.

    Raises:
        MissingShardError: the checkpoint was pruned before or during the copy.
        StoreReadError, StoreWriteError: the checkpoint could not be read, or the folder is full.
    """
    with tempfile.TemporaryDirectory(prefix="segue-checkpoint-") as name:
        copy = LocalStore(Path(name)).create()
        for shard in manifest.shards:
            _copy(store, copy, run_id=run_id, shard=shard)
        log.info("checkpoint copied step=%d bytes=%d", manifest.step, manifest.size_bytes)
        yield copy


def _copy(store: Store, copy: LocalStore, *, run_id: str, shard: Shard) -> None:
    key = f"{run_id}/{shard.key}"
    path = copy.root / key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, shard.size_bytes, _PIECE_BYTES):
                file.write(store.get_range(key, start, min(_PIECE_BYTES, shard.size_bytes - start)))
    except MissingObjectError:
        raise MissingShardError(key=shard.key) from None
    except OSError as error:
        raise StoreWriteError(url=copy.url, key=key, why=error.strerror or str(error)) from error
