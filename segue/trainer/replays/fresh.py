"""Fresh processes that replay steps. The module starts the processes, reads their answers, and measures the noise
between the replays. The noise serves as a second opinion about a replay that differs from its witness.

Each replay needs a new process. The first replay in a process changes state in closures and globals, which no
checkpoint has. In a second replay in the same process, the changed state would look like noise.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter

from segue.clock import Clock
from segue.continuity.differences import are_equal
from segue.continuity.noise import FIX, NONE, UNIT, Noise, in_words, may_be_rare, needs_more, noise_of
from segue.continuity.recipe_diff import differing_paths
from segue.launch.assignment import Assignment
from segue.records import CheckpointRef, Environment, Finding, Record, WitnessRow
from segue.runlog.history import Checkpoint
from segue.trainer.process.context import AttemptContext
from segue.trainer.replays.replay_process import why_no_room

log = logging.getLogger(__name__)

REHEARSAL_VARIABLE = "SEGUE_REHEARSAL"
"""Environment variable that is set in replay processes, so that recipes can avoid writing files or sending reports."""
Rows = tuple[WitnessRow, ...]
_LOOK_SECONDS = 0.05
_STANDARD_ERROR = 2


@dataclass(frozen=True)
class FreshAnswer:
    """The answer of a fresh process."""

    rows: Rows
    setup_json: str
    """The setup of the recipe that the process has built, as a JSON object with one tree for each component."""
    unit: float = UNIT
    is_refused: bool = False
    """Whether the process failed because only deterministic kernels were allowed, but an operation has no deterministic
    kernel."""
    environment: Environment | None = None
    """The environment of the process; None if no step was made."""
    recipe_changes: tuple[Finding, ...] = ()
    """Changes of the setup or of untracked values since the checkpoint."""
    digests: dict[int, dict[str, str]] = field(default_factory=dict)
    """Digest of each component after each watched step."""

    @property
    def made_in(self) -> Environment:
        """The environment of a process that has made steps."""
        assert self.environment is not None
        return self.environment

    def is_same(self, other: FreshAnswer) -> bool:
        """Whether both processes computed the same bits."""
        return are_equal(self.rows, other.rows) and self.digests == other.digests


ANSWER = TypeAdapter(FreshAnswer)


class ReplayRequest(Record):
    """A request to replay steps in a fresh process. If the number of steps is 0, the process only builds the recipe and
    restores the checkpoint."""

    assignment: Assignment
    checkpoint: CheckpointRef
    steps: int = Field(ge=0)
    only_deterministic: bool = Field(False, description="Allow only deterministic kernels.")
    copy_folder: str | None = Field(None, description="Store with a copy of the checkpoint; read first.")
    watched: tuple[int, ...] | None = Field(
        None,
        description="Steps after which the digests of the state are compared, as in an audit; the work between the "
        "steps is then made too. None: only the rows are compared.",
    )


class Replays(NamedTuple):
    """The answers of fresh processes."""

    rows: tuple[Rows, ...]
    is_complete: bool
    """Whether there are enough replays, so that a further replay would show nothing new."""
    unit: float = UNIT
    """Largest relative change that one rounding makes to a value, in the coarsest number format of a step."""


@dataclass(frozen=True)
class FreshProcesses:
    """Fresh processes that replay one request, one process after another.

    If a process fails, or if `may_wait` returns False, there is no answer.
    """

    request: ReplayRequest
    may_wait: Callable[[], bool]
    clock: Clock

    def replays(self, *, own: Sequence[WitnessRow] | None, is_own_fresh: bool = False) -> Replays:
        """Make replays until a further replay would show nothing new.

        `own` is the replay of this process. If `is_own_fresh` is True, `own` was made in the same way as the replays of
        fresh processes, and counts as one of these replays.
        """
        made: list[Rows] = []
        unit = UNIT
        while needs_more(made, attempt=own, is_attempt_fresh=is_own_fresh):
            answer = self.answer()
            if answer is None:
                return Replays(tuple(made), False, unit)
            made.append(answer.rows)
            unit = max(unit, answer.unit)
        return Replays(tuple(made), True, unit)

    def answer(self) -> FreshAnswer | None:
        """Let one more process replay, and return its whole answer; None if there is no answer."""
        return self._asked(self.request)

    def setup(self) -> dict[str, Any]:
        """Return the recipe's setup from a fresh process; empty if there is no answer."""
        answer = self.answer()
        return json.loads(answer.setup_json) if answer is not None else {}

    def has_other_kernels(self, usual: Sequence[WitnessRow]) -> bool:
        """Whether deterministic kernels give other results than the usual kernels, or do not exist for an operation.

        If the result is True, some usual kernels are not deterministic, even if they nearly always give the same bits.
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
    """Run a replay process during the block, with `text` on its standard input. At the end of the block, the process is
    killed.

    Raises:
        OSError: the process could not be started.
    """
    process = start(command, text)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start(command: list[str], text: str) -> subprocess.Popen[bytes]:
    """Start a replay process with `text` on its standard input.

    Raises:
        OSError: the process could not be started.
    """
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        # The recipe may print. The standard output of a command belongs to its own result.
        return subprocess.Popen(command, stdin=file, stdout=_STANDARD_ERROR, env=os.environ | {REHEARSAL_VARIABLE: "1"})


def measured_noise(
    processes: FreshProcesses,
    witness: Sequence[WitnessRow],
    attempt: Sequence[WitnessRow],
    *,
    is_attempt_fresh: bool = False,
    is_whole: bool = True,
    is_noisy: bool = False,
    is_lost: bool = False,
) -> tuple[Noise, bool]:
    """Return the noise between `attempt` and its witness, and whether all processes have answered.

    The flags are the same as the flags of `segue.continuity.noise.noise_of`. If the replays agree and differ only
    slightly from the witness, one more process replays with deterministic kernels only. Four replays do not show noise
    that occurs once in hundreds of replays. The process with deterministic kernels shows whether the usual kernels are
    deterministic.
    """
    own = attempt if is_whole else None
    fresh, is_complete, unit = processes.replays(own=own, is_own_fresh=is_attempt_fresh)

    def found_with(*, is_noisy: bool) -> Noise:
        return noise_of(
            witness,
            attempt,
            fresh,
            is_attempt_fresh=is_attempt_fresh,
            is_whole=is_whole,
            is_noisy=is_noisy,
            is_lost=is_lost,
            unit=unit,
        )

    found = found_with(is_noisy=is_noisy)
    is_open = found == NONE and is_complete and not is_noisy and not is_lost
    if is_open and fresh and may_be_rare(witness, attempt if is_whole else (), fresh, unit=unit):
        log.warning("replays agree, but differ from the witness by rounding; repeating with deterministic kernels")
        if processes.has_other_kernels(fresh[0]):
            return found_with(is_noisy=True), is_complete
    return found, is_complete


_LIMIT_SECONDS = 900.0
"""Longest wait for all replays of one second opinion, in seconds. Building a recipe may take minutes."""


class SecondOpinion:
    """Asks fresh processes for replays before segue judges a resume as broken. The attempt waits in the meantime."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def noise(
        self,
        checkpoint: Checkpoint,
        *,
        witness: Sequence[WitnessRow],
        attempt: Sequence[WitnessRow],
        is_whole: bool,
        is_noisy: bool,
        is_lost: bool,
    ) -> Noise | None:
        """Return the noise between the attempt's rows and the witness; empty if noise explains nothing.

        Return None if a notice leaves no time for the replays.
        """
        if self._context.board.first_kind is not None:
            return None
        if (why := why_no_room(checkpoint.manifest.size_bytes)) != "":
            log.warning("no fresh process can repeat the steps: %s", why)
            return NONE
        context = self._context
        steps = max(row.step for row in witness) - checkpoint.manifest.step
        log.warning(
            "replay differs from the witness; fresh processes replay the steps step=%d",
            checkpoint.manifest.step,
        )
        with context.activity.waiting():
            found, is_complete = measured_noise(
                self._processes(checkpoint, steps=steps),
                witness,
                attempt,
                is_whole=is_whole,
                is_noisy=is_noisy,
                is_lost=is_lost,
            )
        if not is_complete and context.board.first_kind is not None:
            return None
        if found.floats:
            log.warning("%s; this noise sets the tolerances. Fix: %s", in_words(found.floats), FIX)
        return found

    def process_values(self, checkpoint: Checkpoint, setup: Mapping[str, Any]) -> tuple[str, ...]:
        """Return setup values that differ between a fresh process and this process, although both build the same
        recipe."""
        context = self._context
        if context.board.first_kind is not None or why_no_room(checkpoint.manifest.size_bytes):
            return ()
        log.warning("the setup differs from the checkpoint, building the recipe again in a fresh process")
        with context.activity.waiting():
            fresh = self._processes(checkpoint, steps=0).setup()
        return differing_paths(json.loads(json.dumps({name: setup[name] for name in fresh if name in setup})), fresh)

    def _processes(self, checkpoint: Checkpoint, *, steps: int) -> FreshProcesses:
        request = ReplayRequest(assignment=self._context.assignment, checkpoint=checkpoint.ref, steps=steps)
        return FreshProcesses(request, self._patience(), self._context.clock)

    def _patience(self) -> Callable[[], bool]:
        """Return a function that tells if waiting may go on. The function returns False after a notice and at the time
        limits."""
        context, clock = self._context, self._context.clock
        give_up_at = clock.monotonic() + _LIMIT_SECONDS
        if context.plan.max_seconds is not None:
            give_up_at = min(give_up_at, context.started_at + context.plan.max_seconds)

        def may_wait() -> bool:
            context.activity.goes_on()
            return context.board.first_kind is None and clock.monotonic() < give_up_at

        return may_wait


def may_ask(assignment: Assignment) -> bool:
    """Whether segue may ask fresh processes.

    The result is False if rehearsals are off, or for a program. In a fresh process, a program would also repeat all its
    other work.
    """
    return assignment.spec.recipe is not None and assignment.spec.continuity.rehearsal != "off"
