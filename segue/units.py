"""How people are told numbers."""

from __future__ import annotations


def span(seconds: float) -> str:
    """A stretch of time in the unit that fits it."""
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    if abs(seconds) < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 72 * 3600 else f"{seconds / 86400:.1f} days"
