"""Gives google-auth a separate random stream for the pauses before repeated requests.

The reason is in botocore_random.py. google-auth draws the pauses from the `random` module, in the thread that fetches a
token.
"""

from __future__ import annotations

import random
from typing import Any

import google.auth._exponential_backoff

_OWN = random.Random()


def use_own_random_stream() -> None:
    """Make google-auth draw from the separate stream in this process. The function may be called repeatedly."""
    module: Any = google.auth._exponential_backoff
    module.random = _OWN
