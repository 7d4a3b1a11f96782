"""Writes one folder of TensorBoard event files for all segments of a run, with each step once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from segue.errors import MissingExtraError
from segue.integrations.tracker import CommittedRow, TrackedEnd, TrackedRun

log = logging.getLogger(__name__)


class TensorBoardTracker:
    """Writes TensorBoard event files into the folder `FOLDER/RUN`.

    One record of an event file contains one whole step, so a reader never sees a part of a step.
    """

    def __init__(self, *, folder: str = ".segue/tensorboard") -> None:
        """`folder` is the folder for `tensorboard --logdir`.

        Raises:
            MissingExtraError: TensorBoard is not installed.
        """
        try:
            import tensorboard  # noqa: F401 - before anything is bought
        except ImportError:
            raise MissingExtraError(extra="tensorboard", needed_for="The tracker tensorboard") from None
        self._folder = Path(folder).expanduser()
        self._writer: Any = None
        self._left_out: set[str] = set()

    def begin(self, run: TrackedRun) -> int:
        """Find the newest step, as the protocol `Tracker` requires.

        After a kill, a new file in the folder continues after the last complete record.
        """
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._close()
        folder = self._folder / run.run_id
        known = _key_of(folder)
        if known is not None and known != run.key:
            # The run id was used again: TensorBoard would draw both runs as one line.
            folder = self._folder / f"{run.run_id}-{run.key.rpartition('@')[2].replace(':', '')}"
        folder.mkdir(parents=True, exist_ok=True)
        if _key_of(folder) is None:
            (folder / _KEY_FILE).write_text(run.key)
        newest = max(_steps(folder), default=0)
        self._writer = EventFileWriter(str(folder))
        return newest

    def log(self, rows: Sequence[CommittedRow]) -> None:
        """Log the rows, as the protocol `Tracker` requires."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = []
            for name, value in row.values.items():
                try:
                    values.append(Summary.Value(tag=name, simple_value=value))
                except (ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError.
                    self._leave_out(name, error)
            self._writer.add_event(Event(wall_time=row.at.timestamp(), step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def _leave_out(self, name: str, error: Exception) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            log.warning("metric left out, because TensorBoard refuses it name=%r reason=%s", name, error)

    def end(self, end: TrackedEnd) -> None:
        """Close the event file. TensorBoard stores no status and no files of a run."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


_KEY_FILE = "segue-run.txt"


def _key_of(folder: Path) -> str | None:
    file = folder / _KEY_FILE
    return file.read_text() if file.is_file() else None


def _steps(folder: Path) -> Iterator[int]:
    """Return the steps of the complete records in a folder's event files.

    If a kill cut off a record, the file's steps end before this record.
    """
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            if event.HasField("summary"):
                yield event.step
