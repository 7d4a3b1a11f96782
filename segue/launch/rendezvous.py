"""What a launcher and the ranks it started tell each other: files in a folder that is theirs alone.

torchrun stands between them. It passes nothing in, ends all ranks half a minute after a SIGTERM, and gives back one
exit code for all: so a notice goes to the ranks directly, and each leaves its own exit code.
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
from segue.spec import RunSpec

RANKS_VARIABLE = "SEGUE_RANKS"
"""Set for the ranks of an attempt. torchrun's own variables may also stem from whoever started the segment."""


class LaunchFolder:
    """One attempt's folder. Used by processes that may be killed at any moment: what is missing is not known yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, assignment: Assignment) -> Self:
        """A new one, for ranks that are to be started by this process."""
        folder = cls._owned()
        folder.give(assignment)
        return folder

    @classmethod
    def make_standby(cls, spec: RunSpec) -> Self:
        """A new one, for ranks that boot before they are given an assignment."""
        folder = cls._owned()
        (folder.path / "spec.json").write_text(spec.model_dump_json())
        return folder

    @classmethod
    def _owned(cls) -> Self:
        folder = cls(Path(tempfile.mkdtemp(prefix="segue-ranks-")))
        (folder.path / "owner").write_text(str(os.getpid()))
        return folder

    @property
    def assignment(self) -> Assignment | None:
        """What the ranks are to do; None while they are a standby."""
        try:
            return Assignment.model_validate_json((self.path / "assignment.json").read_bytes())
        except FileNotFoundError:
            return None

    def give(self, assignment: Assignment) -> None:
        """Say what the ranks are to do."""
        self._put("assignment.json", assignment.model_dump_json())

    @property
    def spec(self) -> RunSpec:
        """The run that a standby's ranks boot for."""
        return RunSpec.model_validate_json((self.path / "spec.json").read_bytes())

    def boot(self, rank: int) -> None:
        """Say that this rank of a standby is booted."""
        self._put(f"booted-{rank}", os.getpid())

    def has_booted(self, count: int) -> bool:
        """Whether all ranks have."""
        return len(self._numbers("booted")) == count

    @property
    def owner_pid(self) -> int:
        """Who started the ranks, and passes notices on."""
        return int((self.path / "owner").read_text())

    def has_owner(self) -> bool:
        """Whether it still lives; one that is dead and not yet reaped does not."""
        try:
            os.kill(self.owner_pid, 0)
        except ProcessLookupError:
            return False
        return not _is_zombie(self.owner_pid)

    def enter(self, rank: int) -> bool:
        """Let this rank be found from now on; whether a notice was given before."""
        self._put(f"pid-{rank}", os.getpid())
        return (self.path / "notice").exists()

    def leave(self, rank: int, exit_code: int) -> None:
        """Say how this rank ends."""
        self._put(f"exit-{rank}", exit_code)

    def give_notice(self) -> None:
        """Pass a termination notice on to every rank, also to those that still start."""
        with suppress(OSError):  # The folder goes when they have ended.
            (self.path / "notice").touch()
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that has entered and not left."""
        ended = self._numbers("exit")
        for rank, pid in self._numbers("pid").items():
            if rank not in ended:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def exit_code(self) -> int | None:
        """Rank 0's; another's where rank 0 left none."""
        codes = self._numbers("exit")
        return codes[min(codes)] if codes else None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _put(self, name: str, content: int | str) -> None:
        # Renamed into place: nobody reads half of it.
        half = self.path / f".{name}"
        half.write_text(str(content))
        half.rename(self.path / name)

    def _numbers(self, kind: str) -> dict[int, int]:
        found = {}
        for path in self.path.glob(f"{kind}-*"):
            with suppress(OSError):
                found[int(path.name.removeprefix(f"{kind}-"))] = int(path.read_text())
        return found


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False  # Gone, or no Linux: then it counts until it is reaped.
    return stat.rpartition(")")[2].split()[0] == "Z"
