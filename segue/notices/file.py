"""Notices to be looked for: an object in the store (recall), a file that an agent writes, an owner that is gone."""

from __future__ import annotations

import os
from pathlib import Path

from segue.errors import MissingObjectError
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.runlog import keys
from segue.stores.base import Store


class RecallWatcher:
    """The controller asks an attempt to commit and end by an object in the store; works across machines."""

    def __init__(self, store: Store, *, run_id: str, attempt_id: str) -> None:
        self._store, self._key = store, keys.recall_key(run_id, attempt_id)

    def poll(self, board: NoticeBoard) -> None:
        """Look once.

        Raises:
            StoreReadError: the store could not be read; look again later.
        """
        try:
            self._store.size(self._key)
        except MissingObjectError:
            return
        board.leave("recall", grace_seconds=NO_KILL_COMING_SECONDS)


class FileWatcher:
    """A file whose appearance is the notice, for schedulers and agents that can run a script but not send a signal."""

    def __init__(self, path: Path, *, grace_seconds: float) -> None:
        self._path, self._grace_seconds = path, grace_seconds

    def poll(self, board: NoticeBoard) -> None:
        """Look once."""
        if self._path.exists():
            board.leave("file", grace_seconds=self._grace_seconds)


class OwnerWatcher:
    """The process that started the ranks: with it goes whoever would pass a signal on to them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def poll(self, board: NoticeBoard) -> None:
        """Look once."""
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            board.leave("orphaned", grace_seconds=NO_KILL_COMING_SECONDS)


def recall(store: Store, *, run_id: str, attempt_id: str, reason: str) -> None:
    """Ask an attempt to commit at its next safe point and end as `bound`.

    Raises:
        StoreWriteError: the request did not reach the store.
    """
    store.put(keys.recall_key(run_id, attempt_id), reason.encode())
