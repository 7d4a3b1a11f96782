"""Models the standby as a sentinel: the cost of a start, and the times at which segue starts it again."""

from __future__ import annotations

SENTINEL_SECONDS = 180.0
"""Seconds of spot that one start of a sentinel costs."""

PAUSES_SECONDS = (600.0, 1200.0, 2400.0)
"""Pauses in seconds until segue starts another standby after an unused standby. The last pause repeats."""
