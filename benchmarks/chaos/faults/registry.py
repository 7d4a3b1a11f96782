"""Every kind of fault, by name."""

from __future__ import annotations

from benchmarks.chaos.faults import of_prefect, of_processes, of_stores
from benchmarks.chaos.faults.kind import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*of_processes.KINDS, *of_stores.KINDS, *of_prefect.KINDS)}


def times() -> dict[str, tuple[float, float]]:
    """The shortest and the longest time of each kind in seconds."""
    return {name: kind.seconds for name, kind in KINDS.items()}
