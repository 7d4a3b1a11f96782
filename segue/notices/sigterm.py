"""SIGTERM (and Ctrl-C) as a notice."""

from __future__ import annotations

import signal
from types import FrameType

from segue.notices.board import NoticeBoard

_KINDS = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigint"}


def listen(board: NoticeBoard, *, grace_seconds: float) -> None:
    """Make SIGTERM and SIGINT leave a notice instead of ending this process. Main thread only."""

    def on_signal(signum: int, frame: FrameType | None) -> None:
        # Do nothing else here: a handler may run in the middle of a kernel or a write.
        board.leave(_KINDS[signal.Signals(signum)], grace_seconds=grace_seconds)

    for signum in _KINDS:
        signal.signal(signum, on_signal)
