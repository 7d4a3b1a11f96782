"""A driver's report to the process that started it: a file in a folder that only they use."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from segue.errors import RaySetupError
from segue.launch.launcher import Ending

_NAME = "status.json"


class DriverStatus(BaseModel):
    """How far a driver is."""

    model_config = ConfigDict(frozen=True)

    why_waiting: str | None = None
    """What the attempt waits for before its ranks start."""
    has_started: bool = False
    """Whether its ranks were started."""
    code: int | None = None
    """The trainer's exit code, once it has ended; negative: the signal that killed it."""
    ended: str = ""
    """What ended, and how."""
    was_out_of_memory: bool = False
    was_refused: bool = False
    """Whether its ranks could not be started although there was room; the next try comes after a pause."""
    problems: tuple[tuple[str, str], ...] = ()
    """Why the cluster cannot run it, with the fix of each."""

    @property
    def ending(self) -> Ending:
        """The end that it reports."""
        refusal = RaySetupError(problems=self.problems) if self.problems else None
        words = f"it was not started on Ray: {refusal}" if refusal is not None else self.ended
        return Ending(
            words,
            self.was_out_of_memory,
            had_machine=self.has_started,
            was_refused=self.was_refused,
            refusal=refusal,
        )


class StatusFolder:
    """The folder of one driver. If the driver is killed, the last complete status remains."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls) -> Self:
        return cls(Path(tempfile.mkdtemp(prefix="segue-ray-")))

    def write(self, status: DriverStatus) -> None:
        """Write the status. Safe from several threads. Has no effect if the process that reads it has ended."""
        half = self.path / f".{_NAME}-{threading.get_ident()}"
        with suppress(FileNotFoundError):  # The folder was removed.
            half.write_text(status.model_dump_json())
            half.rename(self.path / _NAME)

    def read(self) -> DriverStatus:
        """The status that was written last."""
        try:
            return DriverStatus.model_validate_json((self.path / _NAME).read_bytes())
        except (FileNotFoundError, ValidationError):
            return DriverStatus(why_waiting="its Ray driver starts")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
