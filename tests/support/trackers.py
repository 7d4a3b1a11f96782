"""Trackers for tests: one that keeps what it is sent, one that fails, one that hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from segue.integrations.tracker import CommittedRow, TrackedEnd, TrackedRun


class FileTracker:
    """A tracker as a user would write it: a line of a file for each step, another for the end."""

    def __init__(self, *, file: str) -> None:
        self._file = Path(file)

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def begin(self, run: TrackedRun) -> int:
        return max((line["step"] for line in self.lines() if "step" in line), default=0)

    def log(self, rows: Sequence[CommittedRow]) -> None:
        self._write([{"step": row.step, **row.values} for row in rows])

    def end(self, end: TrackedEnd) -> None:
        ended = {"status": end.status, "files": sorted(file.name for file in end.files), **end.tags}
        if ended not in self.lines():
            self._write([ended])

    def _write(self, lines: list[dict]) -> None:
        with self._file.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


class FailingTracker(FileTracker):
    """Fails in its first call and in its third."""

    def __init__(self, *, file: str) -> None:
        super().__init__(file=file)
        self._calls = 0

    def begin(self, run: TrackedRun) -> int:
        self._fail()
        return super().begin(run)

    def log(self, rows: Sequence[CommittedRow]) -> None:
        self._fail()
        super().log(rows)

    def _fail(self) -> None:
        self._calls += 1
        if self._calls in (1, 3):
            raise ConnectionError("the tracker is away")


class HangingTracker(FileTracker):
    """Never returns from its first call."""

    def begin(self, run: TrackedRun) -> int:
        threading.Event().wait()
        raise AssertionError


class HalfATracker:
    """Lacks a method."""

    def begin(self, run: TrackedRun) -> int:
        return 0

    def log(self, rows: Sequence[CommittedRow]) -> None: ...
