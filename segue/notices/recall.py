"""The recall of an attempt: the controller requests through the store that an attempt commits and stops."""

from __future__ import annotations

from segue.errors import MissingObjectError
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.runlog import keys
from segue.stores.base import Store


def recall(store: Store, *, run_id: str, attempt_id: str, reason: str) -> None:
    """Request that an attempt commits at its next safe point and ends with the stop reason `bound`.

    The attempt may run on another machine.

    Raises:
        StoreWriteError: the request was not stored.
    """
    store.put(keys.recall_key(run_id, attempt_id), reason.encode())


class RecallWatcher:
    """Watches the store for a recall of one attempt."""

    def __init__(self, store: Store, *, run_id: str, attempt_id: str) -> None:
        self._store, self._key = store, keys.recall_key(run_id, attempt_id)

    def poll(self, board: NoticeBoard) -> None:
        """Check the store once. If there is a recall, leave a notice.

        Raises:
            StoreReadError: the store could not be read; try again later.
        """
        try:
            self._store.size(self._key)
        except MissingObjectError:
            return
        board.leave("recall", grace_seconds=NO_KILL_COMING_SECONDS)
