"""Writes the text that the UI and commands show while an attempt waits for its machine. The module is pure."""

from __future__ import annotations

from segue.records import Capacity


def wait_text(capacity: Capacity, *, has_machine: bool, is_starting: bool, pools: str, blocker: str | None) -> str:
    """Return the text of a wait. `blocker` is the reason for the wait, if it is known."""
    doing = "booting" if has_machine else "starting" if is_starting else f"waiting for {capacity} capacity"
    return f"{doing} ({pools})" + (f": {blocker}" if blocker else "")
