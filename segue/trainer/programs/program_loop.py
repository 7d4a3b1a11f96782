"""A program's loop over `run.steps()` or `run.epochs()`, with the range, goal, epoch and end of the loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from segue.clock import SystemClock
from segue.continuity.recipe_diff import CODE
from segue.errors import SessionError
from segue.records import StopReason
from segue.spec import RunSpec
from segue.trainer.programs.loop_range import LoopRange, RangeRecord, require_continued, require_numbers
from segue.trainer.programs.owner import Owner
from segue.trainer.programs.tracked import Epoch

log = logging.getLogger(__name__)


class LoopEnding:
    """The known facts about the end of a program's training."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """The program's reason to end the run; None if the program does not end it."""
        self.error: Exception | None = None
        """The error that ended the attempt, even if the program caught this error."""
        self.reason: StopReason | None = None
        """Stop reason of the attempt; None while it trains, or if the program left its loop."""

    @contextmanager
    def error_kept(self) -> Iterator[None]:
        """A block whose error ends the attempt, even if the program catches the exception and continues."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise


class ProgramLoop:
    """The program's loop, from the call that begins it."""

    def __init__(self, spec: RunSpec, owner: Owner, *, compares_code: bool) -> None:
        """If `compares_code` is False, a person edits the script, so a later goal is accepted."""
        self._spec, self._owner, self._compares_code = spec, owner, compares_code
        self.call = ""
        """The call without its arguments; empty before the call."""
        self.epoch: Epoch | None = None
        """The current epoch of `run.epochs()`; None in a loop over steps."""
        self._goal = math.inf

    @property
    def goal(self) -> int:
        """The step at which the run ends, according to the facts known so far."""
        return int(min(self._goal, self._spec.steps))

    @property
    def own_goal(self) -> float:
        """Number of steps in the loop's range; infinite if the range has no end."""
        return self._goal

    @property
    def ends_before_the_run(self) -> bool:
        """Whether the loop's range ends before the run spec's goal."""
        return self._goal < self._spec.steps

    @property
    def epoch_index(self) -> int:
        """Number of completed epochs; 0 in a loop over steps."""
        return self.epoch.index if self.epoch is not None else 0

    def enter(self, call: str, numbers: range | None) -> RangeRecord:
        """Begin the loop over these numbers, and return the component that records the numbers. `require` then checks
        this record.

        Raises:
            SessionError: the program already has a loop, or segments end after epochs and the loop has none.
        """
        if self.call:
            what = f"{call} was called after {self.call}."
            raise SessionError(what=what, fix="use one loop over run.steps() or run.epochs() for the whole training.")
        if self.epoch is None and self._spec.segment.epochs is not None:
            what = f"segments end after epochs (segment.epochs), but a program with {call} does not count epochs."
            raise SessionError(what=what, fix="let it loop over run.epochs(n), or use segment.steps or segment.hours.")
        self.call = call
        assert self._spec.program is not None
        looped = LoopRange.of(call, numbers, command=self._spec.program.command, config=self._spec.config)
        return RangeRecord(looped, at=SystemClock().now())

    def require(self, record: RangeRecord) -> None:
        """Raise an error if no step is left to train, or if the loop's range does not continue the checkpoint's range.

        Raises:
            SessionError: no step is left to train, or the range is a different one.
        """
        if not self._owner.stored:
            require_numbers(record.now)
        may_extend = not self._compares_code or CODE in self._spec.continuity.accept
        require_continued(record, self._owner.own_files, may_extend=may_extend, compares_code=self._compares_code)

    def set_goal(self, steps: int) -> None:
        """Set the number of steps in the range."""
        self._goal = steps
        if self._spec.steps < steps:
            log.warning("the run ends before the program's goal steps=%d goal=%d", self._spec.steps, steps)
