"""The recipe's `on_notice`: called with limited time and without a way to change the run or to end it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from segue.policy.save_interval import NOTICE_SHARE, LastSave
from segue.records import Notice
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.state import unchanged

log = logging.getLogger(__name__)

_MOST_SECONDS = 5.0
_OF_TIME_LEFT = 0.1
"""Share of the time to the kill that the hook may take."""


def hook_seconds(seconds_left: float | None, last_save: LastSave | None) -> float:
    """How long to wait for the hook, so that the last save still fits afterwards. 0 or less: there is no time."""
    if seconds_left is None:
        return _MOST_SECONDS
    spare = seconds_left
    if last_save is not None and last_save.save:
        spare -= last_save.expected_seconds / NOTICE_SHARE
    return min(_MOST_SECONDS, _OF_TIME_LEFT * seconds_left, spare)


class NoticeHook:
    """Calls the function of the user, if there is one."""

    def __init__(self, function: Callable[[Notice], None] | None, *, components: dict[str, Component]) -> None:
        """Random streams and modes among `components` are the same after a call as before."""
        self._function, self._components = function, components

    def call(self, notice: Notice, *, limit_seconds: float) -> None:
        """Call the hook and wait for it, at most `limit_seconds`. Exceptions of the hook are not raised."""
        function = self._function
        if function is None:
            return
        if limit_seconds <= 0:
            log.warning("on_notice not called: no time is left kind=%s", notice.kind)
            return

        def work() -> None:
            try:
                function(notice)
            except BaseException as error:
                # Even SystemExit: the hook is no reason to lose the last checkpoint.
                log.error("on_notice raised kind=%s", notice.kind, exc_info=error)

        # In a thread: a connection that hangs while the machine goes away must not cost the last checkpoint.
        thread = threading.Thread(target=work, name="segue-on-notice", daemon=True)
        with unchanged(self._components):
            thread.start()
            thread.join(limit_seconds)
        if thread.is_alive():
            log.warning("on_notice still runs, not waited for kind=%s seconds=%.1f", notice.kind, limit_seconds)
