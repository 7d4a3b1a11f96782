"""Messages between a launcher and its ranks. The messages are files in a folder that only the launcher and its ranks
use.

torchrun runs between the launcher and the ranks. torchrun passes no input to the ranks, ends all ranks half a minute
after a SIGTERM, and returns one exit code for all ranks. So the launcher sends notices directly to the ranks, and each
rank writes its own exit code.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from segue.launch.assignment import Assignment
from segue.process import ProcessRef
from segue.spec import RunSpec

RANKS_VARIABLE = "SEGUE_RANKS"
"""Environment variable that segue sets for the ranks of an attempt. torchrun's own variables may also come from outside
the segment."""


class LaunchFolder:
    """The launch folder of one attempt. The processes that use the folder may be killed at any moment. So if a file is
    missing, the fact in this file is not known yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, assignment: Assignment) -> Self:
        """Make a folder for ranks that this process will start."""
        folder = cls._owned()
        folder.give(assignment)
        return folder

    @classmethod
    def make_standby(cls, spec: RunSpec) -> Self:
        """Make a folder for the ranks of a standby, which boot before they have an assignment."""
        folder = cls._owned()
        (folder.path / "spec.json").write_text(spec.model_dump_json())
        return folder

    @classmethod
    def _owned(cls) -> Self:
        folder = cls(Path(tempfile.mkdtemp(prefix="segue-ranks-")))
        (folder.path / "owner").write_text(str(ProcessRef.this()))
        return folder

    @property
    def assignment(self) -> Assignment | None:
        """The assignment of the ranks; None if the ranks are a standby that has no assignment yet."""
        try:
            return Assignment.model_validate_json((self.path / "assignment.json").read_bytes())
        except FileNotFoundError:
            return None

    def give(self, assignment: Assignment) -> None:
        """Write the assignment for the ranks."""
        self._put("assignment.json", assignment.model_dump_json())

    @property
    def spec(self) -> RunSpec:
        """The run spec for which the ranks of a standby boot."""
        return RunSpec.model_validate_json((self.path / "spec.json").read_bytes())

    def boot(self, rank: int) -> None:
        """Report that this rank of a standby has booted."""
        self._put(f"booted-{rank}", os.getpid())

    def has_booted(self, count: int) -> bool:
        """Whether all ranks of a standby have booted."""
        return len(self._by_number("booted")) == count

    @property
    def owner(self) -> ProcessRef:
        """The process that started the ranks and passes notices to them."""
        return ProcessRef.parse((self.path / "owner").read_text())

    def has_owner(self) -> bool:
        """Whether the owner still runs."""
        return self.owner.is_alive()

    def enter(self, rank: int) -> list[signal.Signals]:
        """Register this rank for signals. Return the earlier notices, as signals."""
        self._put(f"pid-{rank}", ProcessRef.this())
        return [signal.Signals(number) for number in self._by_number("notice")]

    def leave(self, rank: int, exit_code: int) -> None:
        """Write this rank's exit code if the folder still exists. After this call, the rank gets no signals."""
        with suppress(OSError):  # The rank must still end.
            self._put(f"exit-{rank}", exit_code)

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a termination notice as a signal to every rank. Ranks that are still starting find the notice in the
        folder."""
        with suppress(OSError):  # No folder after the ranks' end.
            (self.path / f"notice-{int(number)}").touch()
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that has registered, has not called `leave`, and still runs."""
        ended = self._by_number("exit")
        for rank, text in self._by_number("pid").items():
            process = ProcessRef.parse(text)
            if rank not in ended and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def leaders(self) -> list[int]:
        """Process id of every registered rank. Each rank leads its own process group."""
        return [ProcessRef.parse(text).pid for text in self._by_number("pid").values()]

    def exit_code(self) -> int | None:
        """Exit code of rank 0, or of the lowest rank that wrote an exit code; None if no rank wrote an exit code."""
        codes = self._by_number("exit")
        return int(codes[min(codes)]) if codes else None

    def have_left(self, count: int) -> bool:
        """Whether `count` ranks have written their exit codes."""
        return len(self._by_number("exit")) == count

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, name: str, content: object) -> None:
        # The file is renamed into place, so a reader never sees half of it.
        half = self.path / f".{name}"
        half.write_text(str(content))
        half.rename(self.path / name)

    def _by_number(self, kind: str) -> dict[int, str]:
        """Contents of the files of this kind, by the number in the file name. The number is a rank or a signal."""
        found = {}
        for path in self.path.glob(f"{kind}-*"):
            with suppress(OSError):
                found[int(path.name.removeprefix(f"{kind}-"))] = path.read_text()
        return found
