"""Waiting for a state."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def awaited(look: Callable[[], Any], *, seconds: float = 120) -> Any:
    """What `look` returns, as soon as that is anything."""
    give_up_at = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return found
