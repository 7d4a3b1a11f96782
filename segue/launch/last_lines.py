"""The last lines of a process's output, especially the lines with the cause of the end of the process."""

from __future__ import annotations

import re
from collections import deque

from segue.launch.output import Line, OnLine

_KEPT, _QUOTED, _MOST_CHARACTERS = 200, 3, 300
_SAYS_WHY = re.compile(
    r"terminate called|what\(\):|Fatal Python error|Assertion .* failed|(^|[\s.])\w*(Error|Exception)(:|$)"
)
"""Error lines of C++, of Python's fault handler, and of Python tracebacks."""


class LastLines:
    """An object that passes lines on, and keeps the newest lines."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=_KEPT)

    def __call__(self, line: Line) -> None:
        self._kept.append(line.text)
        self._on_line(line)

    def why(self) -> str:
        """Return the newest lines that name a cause. If no line names a cause, return the newest lines. Empty if there
        was no output."""
        lines = [text.strip() for text in list(self._kept) if text.strip()]
        quoted = [text for text in lines if _SAYS_WHY.search(text)] or lines
        return " | ".join(text[:_MOST_CHARACTERS] for text in quoted[-_QUOTED:])
