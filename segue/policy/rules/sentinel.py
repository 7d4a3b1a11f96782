"""Models the standby as a sentinel: the cost of learning through a sentinel that spot is back, and the times at which
it is sent again.
"""

from __future__ import annotations

SENTINEL_SECONDS = 180.0
"""Seconds of spot that one start of a sentinel costs."""

PAUSES_SECONDS = (600.0, 1200.0, 2400.0)
"""Pauses in seconds until a standby is sent again after a standby whose start was not used. The last pause repeats."""
