"""Passes on the lines in the growing output file of a job."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from segue.launch.output import OnLine, Relay

_POLL_SECONDS = 0.5
_CHUNK_BYTES = 1 << 16
_BY_SLURM = ("srun: ", "slurmstepd: ")
"""Prefixes of Slurm's own lines in the output of a job."""
_OF_MEMORY = re.compile(r"out of memory|oom[-_ ]kill", re.IGNORECASE)


class Complaints(NamedTuple):
    """Slurm's own messages in the output of a job."""

    last: str | None = None
    """Slurm's last message about a failed start or about the end of a step. None if there is no message."""
    is_memory: bool = False
    """Whether a message reports a lack of memory. The job's state shows a lack of memory only for the batch script."""


def complaints_in(path: Path) -> Complaints:
    """Return Slurm's own messages at the end of this file."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _CHUNK_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return Complaints()
    said = [line.strip() for line in lines if line.startswith(_BY_SLURM)]
    return Complaints(said[-1] if said else None, any(map(_OF_MEMORY.search, said)))


class OutputTail:
    """A thread that passes on the lines of a growing file, which may not exist yet."""

    def __init__(self, path: Path, on_line: OnLine) -> None:
        self._path = path
        reads, self._writes = os.pipe()
        self._relay = Relay(os.fdopen(reads, "rb", buffering=0), on_line)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="segue-job-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass on the remaining lines, and stop."""
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
