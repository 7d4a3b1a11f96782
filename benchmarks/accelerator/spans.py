"""`python -m benchmarks.accelerator.spans TRACE`: prints a file of SEGUE_TRACE as text, with the time of each part of
each save."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LEAST_MS = 0.2


def main() -> int:
    """Print it."""
    for line in told(read(Path(sys.argv[1]))):
        sys.stdout.write(line + "\n")
    return 0


def read(file: Path) -> list[dict[str, Any]]:
    """Read the events. The file is a JSON list whose closing bracket is missing."""
    events: list[dict[str, Any]] = json.loads(file.read_text().rstrip().rstrip(",") + "]")
    return events


def told(events: list[dict[str, Any]]) -> Iterator[str]:
    """For each process, return its steps, and each save with the spans inside this save."""
    for pid in sorted({event["pid"] for event in events}):
        own = sorted((event for event in events if event["pid"] == pid), key=lambda event: (event["ts"], -event["dur"]))
        steps = [event["dur"] / 1000 for event in own if event["name"] == "step"]
        if steps:
            middle = statistics.median(steps)
            yield f"process {pid}: {len(steps)} steps, median {middle:.1f} ms, longest {max(steps):.1f} ms"
        for save in (event for event in own if event["name"] == "save"):
            yield f"  save at step {save['args'].get('step')}: {save['dur'] / 1000:.1f} ms"
            end = save["ts"] + save["dur"]
            for part in own:
                if part is not save and part["tid"] == save["tid"] and save["ts"] <= part["ts"] < end:
                    yield from _part(part, 4)
            following = [each for each in own if each["name"] == "step" and each["ts"] >= end][:3]
            yield "    steps after it: " + ", ".join(f"{each['dur'] / 1000:.1f}" for each in following) + " ms"
        others = defaultdict(list)
        for event in own:
            if event["tid"] != "MainThread":
                others[event["tid"], event["name"]].append(event)
        for (thread, name), found in others.items():
            shown = ", ".join(f"{each['dur'] / 1000:.0f}" for each in found[:6])
            yield f"  {thread}: {name} {shown} ms {found[0]['args'] or ''}".rstrip()


def _part(part: dict[str, Any], indent: int) -> Iterator[str]:
    if part["dur"] / 1000 >= _LEAST_MS:
        yield f"{'':{indent}s}{part['name']:22s} {part['dur'] / 1000:8.1f} ms {part['args'] or ''}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
