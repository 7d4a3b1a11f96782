"""Messages between a launcher and its ranks: files in a folder that only they use.

torchrun runs between the launcher and the ranks. It passes no input to them, ends all ranks half a minute after a
SIGTERM, and returns one exit code for all. So notices are sent directly to the ranks, and each rank writes its own exit
code.
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
"""Variable that is set for the ranks of an attempt. torchrun's own variables may also come from outside the segment."""


class LaunchFolder:
    """The launch folder of one attempt. Its users may be killed at any moment, so a missing file means that a fact is
    not known yet."""

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
        """The assignment of the ranks; None if they are a standby without one."""
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
        """Register this rank for signals; return earlier notices as signals."""
        self._put(f"pid-{rank}", ProcessRef.this())
        return [signal.Signals(number) for number in self._by_number("notice")]

    def leave(self, rank: int, exit_code: int) -> None:
        """Write this rank's exit code, if the folder still exists; afterwards the rank gets no signals."""
        with suppress(OSError):  # The launcher then sees only torchrun's exit code. The rank must end in any case.
            self._put(f"exit-{rank}", exit_code)

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a termination notice as a signal to every rank, and leave it for ranks that are still starting."""
        with suppress(OSError):  # The folder is removed when they have ended.
            (self.path / f"notice-{int(number)}").touch()
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that has registered, has not left and still runs."""
        ended = self._by_number("exit")
        for rank, text in self._by_number("pid").items():
            process = ProcessRef.parse(text)
            if rank not in ended and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def leaders(self) -> list[int]:
        """Process id of every registered rank; each rank leads its own process group."""
        return [ProcessRef.parse(text).pid for text in self._by_number("pid").values()]

    def exit_code(self) -> int | None:
        """Exit code of rank 0, or of the lowest rank that wrote one; None if no rank did."""
        codes = self._by_number("exit")
        return int(codes[min(codes)]) if codes else None

    def have_left(self, count: int) -> bool:
        """Whether `count` ranks have written their exit codes."""
        return len(self._by_number("exit")) == count

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, name: str, content: object) -> None:
        # Renamed into place: a reader never sees half of it.
        half = self.path / f".{name}"
        half.write_text(str(content))
        half.rename(self.path / name)

    def _by_number(self, kind: str) -> dict[int, str]:
        """Contents of the files of this kind, by the number in the file name: a rank or a signal."""
        found = {}
        for path in self.path.glob(f"{kind}-*"):
            with suppress(OSError):
                found[int(path.name.removeprefix(f"{kind}-"))] = path.read_text()
        return found
