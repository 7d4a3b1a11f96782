"""The standby as a sentinel: what it costs to learn through it that spot is back, and when it is sent again."""

from __future__ import annotations

SENTINEL_SECONDS = 180.0
"""Spot time that one start of a sentinel costs."""

PAUSES_SECONDS = (600.0, 1200.0, 2400.0)
"""Pauses until a standby is sent again after a standby whose start was not used; the last pause repeats."""
