"""A file as a notice: for schedulers and agents that can run a script but not send a signal."""

from __future__ import annotations

from pathlib import Path

from segue.notices.board import NoticeBoard


class FileWatcher:
    """Watches for a file whose appearance is the notice."""

    def __init__(self, path: Path, *, grace_seconds: float) -> None:
        self._path, self._grace_seconds = path, grace_seconds

    def poll(self, board: NoticeBoard) -> None:
        """Check once whether the file exists."""
        if self._path.exists():
            board.leave("file", grace_seconds=self._grace_seconds)
