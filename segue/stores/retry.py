"""Retries store operations, so that a temporary fault of a store does not fail the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from segue.clock import Clock, SystemClock
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_SECONDS = 900.0
"""Seconds for which a parent retries a failing store. A segment whose trainer has ended also uses this limit."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0


def patiently(ask: Callable[[], T], *, what: str, patience_seconds: float = 60.0, clock: Clock | None = None) -> T:
    """Call `ask` and return its result. While the store fails, call `ask` again after growing pauses.

    Raises:
        StoreReadError, StoreWriteError: the store still fails after `patience_seconds`.
    """
    clock = clock or SystemClock()
    give_up_at = clock.monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except (StoreReadError, StoreWriteError) as error:
            if clock.monotonic() + pause > give_up_at:
                raise
            log.warning("store failed, retrying what=%s in=%.1f reason=%s", what, pause, error)
            clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
