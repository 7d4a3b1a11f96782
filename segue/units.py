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


DEFAULT_CURRENCY = "USD"


def money(amount: float, currency: str) -> str:
    """An amount with its currency, in digits that show small amounts too. Old records name no currency."""
    digits = 2 if abs(amount) >= 1 or not amount else 4
    return f"{amount:.{digits}f} {currency or DEFAULT_CURRENCY}"


def size(count_bytes: float) -> str:
    """A number of bytes in the decimal unit that fits it, with two digits or more: 900 B, 28 kB, 3.4 GB."""
    value, units = float(count_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.2g} {units[0]}" if value < 10 and units[0] != "B" else f"{value:.0f} {units[0]}"
