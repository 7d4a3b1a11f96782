"""A separate random stream for google-auth's pauses between its requests, for the reason in botocore_random.py.

google-auth draws the pauses from the stream of the `random` module, in the thread that fetches a token.
"""

from __future__ import annotations

import random
from typing import Any

import google.auth._exponential_backoff

_OWN = random.Random()


def use_own_random_stream() -> None:
    """Let google-auth draw from that stream in this process. Idempotent."""
    module: Any = google.auth._exponential_backoff
    module.random = _OWN
