"""Signals as notices: SIGTERM, SIGINT (Ctrl-C), and SIGUSR1, which Slurm sends ahead of time."""

from __future__ import annotations

import os
import signal
from types import FrameType

from segue.notices.board import NoticeBoard

KINDS = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigint", signal.SIGUSR1: "sigusr1"}
"""The signals, and the kind of notice that each of them leaves."""


class SignalNotices:
    """Leaves a notice for each signal that this process gets."""

    def __init__(self, board: NoticeBoard, *, grace_seconds: float, usr1_seconds: float | None = None) -> None:
        """`usr1_seconds` is the time from SIGUSR1 to the kill; None: `grace_seconds`, as for the other signals."""
        self._board = board
        self._process: int | None = None
        self._seconds = dict.fromkeys(KINDS, grace_seconds)
        if usr1_seconds is not None:
            self._seconds[signal.SIGUSR1] = usr1_seconds

    def listen(self) -> None:
        """Make the signals leave notices instead of ending this process. Main thread only."""
        self._process = os.getpid()
        for number in KINDS:
            signal.signal(number, self._on_signal)

    def leave(self, number: signal.Signals) -> None:
        """Leave the notice of a signal that another process received for this one."""
        self._board.leave(KINDS[number], grace_seconds=self._seconds[number])

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A process that the user's code has forked. A signal to it has its usual meaning: it ends.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        # Do nothing else here: a handler may run in the middle of a kernel or a write.
        self.leave(signal.Signals(signum))
