"""A sampling profiler. At equal intervals of processor time, it records the file of the innermost frame that belongs to
a part. Every sample costs the same, so the measurement does not change the shares of the parts.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_EVERY_SECONDS = 0.0005
USER, OTHER = "the step itself", "other"
_PARTS = (
    ("torch/utils/data/", "torch's DataLoader"),
    ("segue/data/", "order of the samples"),
    ("segue/trainer/workloads/", "step of a recipe and its numbers"),
    ("segue/trainer/programs/", "step of a session and its numbers"),
    ("segue/sessions.py", "step of a session and its numbers"),
    ("segue/trainer/loop.py", "training loop"),
    ("segue/trainer/safe_points.py", "safe point"),
    ("segue/trainer/step_records.py", "rows, curve and pace"),
    ("segue/curves/", "rows, curve and pace"),
    ("segue/trainer/health/", "rows, curve and pace"),
    ("segue/trainer/time_left.py", "rows, curve and pace"),
    ("segue/trainer/save_schedule.py", "rows, curve and pace"),
    ("segue/trainer/", "training loop"),
)
PARTS = tuple(dict.fromkeys(part for _, part in _PARTS))


def part_of(path: str) -> str | None:
    """The part to which a file belongs; None if its time counts for the code that calls it."""
    return next((part for within, part in _PARTS if within in path), None)


class Sampler:
    """Counts samples of the main thread by part, from `start` to `stop`."""

    def __init__(self, user_file: str) -> None:
        """The time of functions in `user_file` counts as time of the step itself."""
        self._user_file, self._found = user_file, Counter[str]()
        self._started = 0.0

    def start(self) -> None:
        """Begin to sample."""
        signal.signal(signal.SIGPROF, self._sample)
        self._started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, _EVERY_SECONDS, _EVERY_SECONDS)

    def stop(self, file: Path, *, steps: int) -> None:
        """Write the microseconds of a step by part into this file, as JSON."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        each = 1e6 * (time.process_time() - self._started) / steps / max(self._found.total(), 1)
        file.write_text(json.dumps({part: round(each * count, 1) for part, count in self._found.items()}))

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = frame.f_code.co_filename
            part = USER if path == self._user_file else part_of(path)
            if part is not None:
                self._found[part] += 1
                return
            frame = frame.f_back
        self._found[OTHER] += 1
