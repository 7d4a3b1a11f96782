"""Orphaned trainers: when the process that started a trainer ends, no signal reaches the trainer any more."""

from __future__ import annotations

from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.process import Parent, ProcessRef


class OrphanWatcher:
    """Sees that the parent of this process, or the process that started all ranks, has ended."""

    def __init__(self, owner: ProcessRef | None = None, *, parent: Parent | None = None) -> None:
        """Give `parent` if it may have ended before this call."""
        self._parent, self._owner = parent or Parent(), owner

    def poll(self, board: NoticeBoard) -> None:
        """Look once."""
        is_owned = self._owner is None or self._owner.is_alive()
        if not self._parent.is_alive() or not is_owned:
            board.leave("orphaned", grace_seconds=NO_KILL_COMING_SECONDS)
