"""Fresh processes that replay steps: started here, awaited, and their answers read back.

Each replay needs a process of its own. State that no checkpoint has, in closures and globals, has changed after the
first replay of a process, and would look like noise in the second replay.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter

from segue.clock import Clock
from segue.continuity.differences import are_equal
from segue.continuity.noise import UNIT, needs_more
from segue.launch.assignment import Assignment
from segue.records import CheckpointRef, Record, WitnessRow

log = logging.getLogger(__name__)

REHEARSAL_VARIABLE = "SEGUE_REHEARSAL"
"""Set in processes that only replay, for recipes that write files or send reports."""
Rows = tuple[WitnessRow, ...]
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class FreshAnswer:
    """What a fresh process saw."""

    rows: Rows
    setup_json: str
    """The setup of the recipe that it built: a tree by component."""
    unit: float = UNIT
    is_refused: bool = False
    """Whether an operation has no deterministic kernel, if only those were allowed."""


ANSWER = TypeAdapter(FreshAnswer)


class ReplayRequest(Record):
    """The steps that a fresh process replays; without steps, it only builds the recipe and restores the checkpoint."""

    assignment: Assignment
    checkpoint: CheckpointRef
    steps: int = Field(ge=0)
    only_deterministic: bool = Field(False, description="Allow only deterministic kernels.")
    copy_folder: str | None = Field(None, description="A store with a copy of the checkpoint, which is read first.")


class Replays(NamedTuple):
    """What fresh processes saw."""

    rows: tuple[Rows, ...]
    is_complete: bool
    """Whether more replays would show nothing new."""
    unit: float = UNIT
    """How much one rounding may change a value, relatively, in the coarsest format that a step computes in."""


@dataclass(frozen=True)
class FreshProcesses:
    """Processes that make the replay of one request, one after the other.

    If a process fails, or `may_wait` ends the wait, there is no answer.
    """

    request: ReplayRequest
    may_wait: Callable[[], bool]
    clock: Clock

    def replays(self, *, own: Sequence[WitnessRow] | None, is_own_fresh: bool = False) -> Replays:
        """Make replays until more would show nothing new.

        `own` is the replay of this process; with `is_own_fresh` it was made like the replays of fresh processes, and
        counts as one of them.
        """
        made: list[Rows] = []
        unit = UNIT
        while needs_more(made, attempt=own, is_attempt_fresh=is_own_fresh):
            answer = self._asked(self.request)
            if answer is None:
                return Replays(tuple(made), False, unit)
            made.append(answer.rows)
            unit = max(unit, answer.unit)
        return Replays(tuple(made), True, unit)

    def setup(self) -> dict[str, Any]:
        """The setup of the recipe as a fresh process builds it; empty without an answer."""
        answer = self._asked(self.request)
        return json.loads(answer.setup_json) if answer is not None else {}

    def has_other_kernels(self, usual: Sequence[WitnessRow]) -> bool:
        """Whether deterministic kernels compute other results than the usual kernels, or one of them is missing.

        In that case, some usual kernels are not deterministic, though they may nearly always give the same bits.
        """
        answer = self._asked(self.request.model_copy(update={"only_deterministic": True}))
        return answer is not None and (answer.is_refused or not are_equal(answer.rows, usual))

    def _asked(self, request: ReplayRequest) -> FreshAnswer | None:
        return _asked(request, may_wait=self.may_wait, clock=self.clock)


def _asked(request: ReplayRequest, *, may_wait: Callable[[], bool], clock: Clock) -> FreshAnswer | None:
    try:
        with tempfile.TemporaryDirectory(prefix="segue-replay-") as folder:
            answer = Path(folder) / "answer.json"
            command = [sys.executable, "-m", "segue.trainer.replays.main", str(os.getpid()), str(answer)]
            with started(command, request.model_dump_json()) as process:
                while (code := process.poll()) is None and may_wait():
                    clock.sleep(_LOOK_SECONDS)
            if code == 0 and answer.exists():
                return ANSWER.validate_json(answer.read_bytes())
    except OSError as error:
        log.warning("replay skipped: its process could not be started reason=%s", error)
        return None
    log.warning("replay by a fresh process failed or was ended exit_code=%s", code)
    return None


@contextmanager
def started(command: list[str], text: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that only replays, with this text on its standard input; it ends with the block.

    Raises:
        OSError: it could not be started.
    """
    process = start(command, text)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start(command: list[str], text: str) -> subprocess.Popen[bytes]:
    """Start a process that only replays, with this text on its standard input.

    Raises:
        OSError: it could not be started.
    """
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        return subprocess.Popen(command, stdin=file, env=os.environ | {REHEARSAL_VARIABLE: "1"})
