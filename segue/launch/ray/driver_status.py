"""Passes the status of a driver to the process that started the driver, as a file that only these processes use."""

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
    """The state of a driver."""

    model_config = ConfigDict(frozen=True)

    why_waiting: str | None = None
    """Reason why the ranks have not started. The value is None if nothing delays the ranks."""
    has_started: bool = False
    """Whether the driver has started its ranks."""
    code: int | None = None
    """Exit code of the trainer. The value is None before the end of the trainer.

    A negative exit code is the number of the signal that killed the trainer.
    """
    ended: str = ""
    """A description of the end."""
    was_out_of_memory: bool = False
    was_refused: bool = False
    """Whether the ranks failed to start although the cluster had room. If so, segue pauses before the next start."""
    problems: tuple[tuple[str, str], ...] = ()
    """Pairs of a problem and its fix. Each problem prevents the cluster from running the attempt."""

    @property
    def ending(self) -> Ending:
        """The end of the trainer according to this status."""
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
    """The folder of one driver. If the driver is killed, its last complete status remains in the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls) -> Self:
        return cls(Path(tempfile.mkdtemp(prefix="segue-ray-")))

    def write(self, status: DriverStatus) -> None:
        """Write the status. The call has no effect if the reading process has removed the folder.

        Several threads may call this method.
        """
        half = self.path / f".{_NAME}-{threading.get_ident()}"
        with suppress(FileNotFoundError):  # The folder was removed.
            half.write_text(status.model_dump_json())
            half.rename(self.path / _NAME)

    def read(self) -> DriverStatus:
        """Return the newest status."""
        try:
            return DriverStatus.model_validate_json((self.path / _NAME).read_bytes())
        except (FileNotFoundError, ValidationError):
            return DriverStatus(why_waiting="its Ray driver is starting")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
