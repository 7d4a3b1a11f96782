"""The one loop of a program over `run.steps()` or `run.epochs()`: its range, its goal, its epoch, and how it ends."""

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


class Ending:
    """How a program's training ends, as far as that is known."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """Why the program ends the run; None if it does not."""
        self.error: Exception | None = None
        """The error that ended the attempt, even if the program caught it."""
        self.reason: StopReason | None = None
        """Why the attempt ends; None while it trains, or when the program left its loop."""

    @contextmanager
    def error_kept(self) -> Iterator[None]:
        """A block whose error ends the attempt: a program may catch the exception, and continue."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise


class ProgramLoop:
    """The loop, from the call of the program that begins it."""

    def __init__(self, spec: RunSpec, owner: Owner, *, compares_code: bool) -> None:
        """`compares_code=False`: a later goal alone does not end the run, because a person edits the script."""
        self._spec, self._owner, self._compares_code = spec, owner, compares_code
        self.call = ""
        """The call, without its arguments; empty before it."""
        self.epoch: Epoch | None = None
        """The position in `run.epochs()`; None in a loop over steps."""
        self._goal = math.inf

    @property
    def goal(self) -> int:
        """The step at which the run ends, as far as it is known."""
        return int(min(self._goal, self._spec.steps))

    @property
    def own_goal(self) -> float:
        """The number of steps in the loop's own range; infinite if it has none."""
        return self._goal

    @property
    def ends_before_the_run(self) -> bool:
        """Whether the loop's own range ends before the goal of the run spec."""
        return self._goal < self._spec.steps

    @property
    def epoch_index(self) -> int:
        """How many epochs are done; 0 in a loop over steps."""
        return self.epoch.index if self.epoch is not None else 0

    def enter(self, call: str, numbers: range | None) -> RangeRecord:
        """Begin the loop over these numbers; returns the component that records them, to be checked with `require`.

        Raises:
            SessionError: it is the second loop, or it has no epochs although segments end after epochs.
        """
        if self.call:
            what = f"{call} was called after {self.call}."
            raise SessionError(what=what, fix="use one loop over run.steps() or run.epochs() for the whole training.")
        if self.epoch is None and self._spec.segment.epochs is not None:
            what = f"segments end after epochs (segment.epochs), and a program with {call} counts none."
            raise SessionError(what=what, fix="let it loop over run.epochs(n), or use segment.steps or segment.hours.")
        self.call = call
        assert self._spec.program is not None
        looped = LoopRange.of(call, numbers, command=self._spec.program.command, config=self._spec.config)
        return RangeRecord(looped, at=SystemClock().now())

    def require(self, record: RangeRecord) -> None:
        """Pass if there is something to train, and if the range of the checkpoint continues in this one.

        Raises:
            SessionError: there is nothing to train, or it is another range.
        """
        if not self._owner.stored:
            require_numbers(record.now)
        may_extend = not self._compares_code or CODE in self._spec.continuity.accept
        require_continued(record, self._owner.own_files, may_extend=may_extend, compares_code=self._compares_code)

    def set_goal(self, steps: int) -> None:
        """Take note of the number of steps in the range."""
        self._goal = steps
        if self._spec.steps < steps:
            log.warning("the run ends before the program's goal steps=%d goal=%d", self._spec.steps, steps)
