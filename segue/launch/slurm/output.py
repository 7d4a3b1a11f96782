"""The output of a job: a file that grows, and whose lines are passed on."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from segue.launch.output import OnLine, Relay

_POLL_SECONDS = 0.5
_CHUNK_BYTES = 1 << 16
_BY_SLURM = ("srun: ", "slurmstepd: ")
"""How Slurm's own lines in the output of a job begin."""


def complaint_in(path: Path) -> str | None:
    """What Slurm itself wrote last into the output of a job: why a step did not start; None where it wrote nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _CHUNK_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.startswith(_BY_SLURM)), None)


class OutputTail:
    """Passes the lines of a growing file on, from a thread of its own; the file need not exist yet."""

    def __init__(self, path: Path, on_line: OnLine) -> None:
        self._path = path
        reads, self._writes = os.pipe()
        self._relay = Relay(os.fdopen(reads, "rb", buffering=0), on_line)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="segue-job-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass on what there is, and stop."""
        self._stop.set()
        self._thread.join()
        self._relay.close()

    def _follow(self) -> None:
        file: IO[bytes] | None = None
        try:
            is_last = False
            while not is_last:
                is_last = self._stop.wait(_POLL_SECONDS)
                if file is None:
                    with suppress(OSError):  # The job has not started, or the file system does not show it yet.
                        file = self._path.open("rb", buffering=0)
                if file is not None:
                    self._copy(file)
        finally:
            os.close(self._writes)
            if file is not None:
                file.close()

    def _copy(self, file: IO[bytes]) -> None:
        with suppress(OSError):
            while chunk := file.read(_CHUNK_BYTES):
                while chunk:
                    chunk = chunk[os.write(self._writes, chunk) :]
