"""A random stream of botocore's own, for the pauses between its requests.

botocore draws them from the stream of the `random` module, in the thread that repeats a request. In a trainer that
stream belongs to the recipe and is part of the run's state: a request that had to be repeated would change it, and the
run would no longer be the one that an undisturbed store gives.
"""

from __future__ import annotations

import random
from functools import partial

import botocore.retries.standard
import botocore.retryhandler
import botocore.utils

_OWN = random.Random()


def use_own_random_stream() -> None:
    """Let every client of this process draw from that stream, also those that fetch credentials. Idempotent."""
    for module in (botocore.retryhandler, botocore.utils):
        module.random = _OWN
    found = botocore.retries.standard.ExponentialBackoff
    if not isinstance(found, partial):  # It keeps the function that it draws with as a default argument.
        botocore.retries.standard.ExponentialBackoff = partial(found, random=_OWN.random)
