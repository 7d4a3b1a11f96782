"""Orphaned trainers: when the process that started a trainer is gone, no signal reaches it any more."""

from __future__ import annotations

import os

from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard


class OrphanWatcher:
    """Sees that the parent of this process, or the process that started all ranks, is gone."""

    def __init__(self, owner_pid: int | None = None) -> None:
        self._parent_pid, self._owner_pid = os.getppid(), owner_pid

    def poll(self, board: NoticeBoard) -> None:
        """Look once."""
        if os.getppid() != self._parent_pid or not _is_alive(self._owner_pid):
            board.leave("orphaned", grace_seconds=NO_KILL_COMING_SECONDS)


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
