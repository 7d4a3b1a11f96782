"""Gives botocore a separate random stream for the pauses before repeated requests.

botocore draws the pauses from the `random` module, in the thread that repeats a request. In a trainer, the `random`
module's stream belongs to the recipe and is part of the run's state. Without a separate stream, a repeated request
would change the recipe's stream, so the run would differ from a run without this request.
"""

from __future__ import annotations

import random
from typing import Any

import botocore.retries.standard
import botocore.retryhandler
import botocore.utils

_OWN = random.Random()


class _Backoff(botocore.retries.standard.ExponentialBackoff):  # type: ignore[misc]
    """Draws the pauses from the separate stream, because the original class keeps a reference to `random.random`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._random = _OWN.random


def use_own_random_stream() -> None:
    """Make all botocore clients of this process draw from a separate random stream. Repeated calls are permitted."""
    botocore.retryhandler.random = botocore.utils.random = _OWN
    botocore.retries.standard.ExponentialBackoff = _Backoff
