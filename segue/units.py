"""How numbers with a unit are written for people. Durations are parsed by `segue.cli.durations`."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def duration(seconds: float) -> str:
    """A duration in the one unit that fits it, with two digits or more: 20 ms, 2.5 s, 84 s, 4.1 min, 2.0 h."""
    length = abs(seconds)
    if length < 0.01:
        return f"{1000 * seconds:.2g} ms" if seconds else "0 s"
    if length < 2 * _MINUTE:
        return f"{seconds:.2g} s" if length < 10 else f"{seconds:.0f} s"
    if length < 2 * _HOUR:
        minutes = seconds / _MINUTE
        return f"{minutes:.2g} min" if abs(minutes) < 10 else f"{minutes:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if length < 3 * _DAY else f"{seconds / _DAY:.1f} days"
