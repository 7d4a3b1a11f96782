"""Orphaned trainers: no signal reaches a trainer when the process that started it is gone."""

from __future__ import annotations

import os

from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard


class OrphanWatcher:
    """Watches the parent of this process and the process that started all ranks; leaves a notice when one is gone."""

    def __init__(self, owner_pid: int | None = None) -> None:
        self._parent_pid, self._owner_pid = os.getppid(), owner_pid

    def poll(self, board: NoticeBoard) -> None:
        """Check once whether both processes are alive."""
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
