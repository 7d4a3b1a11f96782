"""Gives google-auth a separate random stream for the pauses before repeated requests.

google-auth draws the pauses from the `random` module, in the thread that fetches a token. botocore_random.py explains
why a repeated request must not change the stream of this module.
"""

from __future__ import annotations

import random
from typing import Any

import google.auth._exponential_backoff

_OWN = random.Random()


def use_own_random_stream() -> None:
    """Make google-auth draw from a separate random stream in this process. Repeated calls are permitted."""
    module: Any = google.auth._exponential_backoff
    module.random = _OWN
