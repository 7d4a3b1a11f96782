"""Notices from signals: SIGTERM, SIGINT (Ctrl-C), and SIGUSR1, which Slurm sends before the end of a job."""

from __future__ import annotations

import os
import signal
from types import FrameType

from segue.notices.board import NoticeBoard

KINDS = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigint", signal.SIGUSR1: "sigusr1"}
"""Maps each signal to the kind of its notice."""


class SignalNotices:
    """Leaves a notice on the board for each signal that this process receives."""

    def __init__(self, board: NoticeBoard, *, grace_seconds: float, usr1_seconds: float | None = None) -> None:
        """`usr1_seconds` is the time from SIGUSR1 to the kill. If `usr1_seconds` is None, this time is `grace_seconds`.
        All other signals use `grace_seconds`."""
        self._board = board
        self._process: int | None = None
        self._seconds = dict.fromkeys(KINDS, grace_seconds)
        if usr1_seconds is not None:
            self._seconds[signal.SIGUSR1] = usr1_seconds

    def listen(self) -> None:
        """Install handlers, so that the signals leave notices and do not end this process.

        Only the main thread may call this method.
        """
        self._process = os.getpid()
        for number in KINDS:
            signal.signal(number, self._on_signal)

    def leave(self, number: signal.Signals) -> None:
        """Leave the notice for a signal that another process received on behalf of this process."""
        self._board.leave(KINDS[number], grace_seconds=self._seconds[number])

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # The user's code has forked this process. In a forked process, the signal has its usual effect and ends the
            # process.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        # Do nothing else here, because a handler may run in the middle of a kernel or a write.
        self.leave(signal.Signals(signum))
