"""A separate random stream for botocore's pauses between its requests.

botocore draws the pauses from the stream of the `random` module, in the thread that repeats a request. In a trainer
that stream belongs to the recipe and is part of the run's state: a repeated request would change it, and the run would
differ from a run with an undisturbed store.
"""

from __future__ import annotations

import random
from typing import Any

import botocore.retries.standard
import botocore.retryhandler
import botocore.utils

_OWN = random.Random()


class _Backoff(botocore.retries.standard.ExponentialBackoff):  # type: ignore[misc]
    """Draws from botocore's own stream. The original class keeps a reference to the function that draws."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._random = _OWN.random


def use_own_random_stream() -> None:
    """Let every client of this process draw from that stream, including clients that fetch credentials. Idempotent."""
    botocore.retryhandler.random = botocore.utils.random = _OWN
    botocore.retries.standard.ExponentialBackoff = _Backoff
