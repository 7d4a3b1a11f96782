"""A program's loop and its range. Each checkpoint records the range, because a position is only valid in the same
range."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import xxhash

from segue.clock import SystemClock
from segue.continuity.recipe_diff import CODE
from segue.errors import SessionError
from segue.records import StopReason
from segue.spec import RunSpec
from segue.trainer.programs.own_files import OwnFiles
from segue.trainer.programs.owner import Owner
from segue.trainer.programs.tracked import Epoch
from segue.trainer.ranks.collectives import FINISHED_ELSEWHERE
from segue.trainer.workloads.opened_files import opened_files

log = logging.getLogger(__name__)

_MOST_NAMED = 3


@dataclass(frozen=True)
class LoopRange:
    """The range over which a program loops."""

    loop: str
    """The call that begins the loop, without its arguments, for example `run.epochs()`."""
    start: int
    stop: int | None
    """End of the range; None if only the run's goal ends the loop."""
    command: str
    """Hash of the program's command and config. If the hash has changed, the user may have changed the end of the range
    on purpose."""

    @classmethod
    def of(cls, loop: str, numbers: range | None, *, command: Sequence[str], config: Mapping[str, Any]) -> LoopRange:
        """Make the range of a loop over `numbers`, for this command and config. If `numbers` is None, the range has no
        end."""
        start, stop = (0, None) if numbers is None else (numbers.start, numbers.stop)
        given = [*command, *([json.dumps(config, sort_keys=True)] if config else [])]
        return cls(loop, start, stop, xxhash.xxh3_64_hexdigest(json.dumps(given).encode()))

    @property
    def is_empty(self) -> bool:
        """Whether the range has no number."""
        return self._end <= self.start

    @property
    def in_words(self) -> str:
        """The call as the program makes it, for example `run.epochs(8)` or `run.epochs(4, 8)`."""
        arguments = [] if self.stop is None else [self.stop] if self.start == 0 else [self.start, self.stop]
        return self.loop.replace("()", f"({', '.join(map(str, arguments))})")

    def continues(self, before: LoopRange, *, may_extend: bool) -> bool:
        """Whether a position that was recorded in the range `before` means the same in this range.

        If the program's arguments or config have changed, a different end is accepted. If `may_extend` is True, a later
        end is always accepted.
        """
        if (self.loop, self.start) != (before.loop, before.start):
            return False
        is_later = self._end > before._end
        return self.stop == before.stop or self.command != before.command or (is_later and may_extend)

    @property
    def _end(self) -> float:
        return math.inf if self.stop is None else self.stop


class RangeRecord:
    """A component with the range of the loop. A restore reads the recorded range, but does not change the current
    range."""

    def __init__(self, now: LoopRange, *, at: datetime) -> None:
        self.now = now
        self.began_at = at
        """Time at which the run's first attempt began its loop. A file that is newer than this time was written by
        training."""
        self.before: LoopRange | None = None
        """The range in the checkpoint; None in a new run or if the checkpoint has no range."""

    def capture(self) -> Any:
        return {"range": asdict(self.now), "began_at": self.began_at.isoformat()}

    def restore(self, tree: Any) -> None:
        self.before, self.began_at = LoopRange(**tree["range"]), datetime.fromisoformat(tree["began_at"])


def require_continued(
    record: RangeRecord, own_files: Callable[[datetime], OwnFiles], *, may_extend: bool, compares_code: bool
) -> None:
    """Raise an error if the program's current range does not continue the recorded range.

    If `may_extend` is True, a later end is accepted. If `compares_code` is True, the error's fix tells the user how to
    accept the changed code.

    Raises:
        SessionError: the range does not continue the recorded range; the message names the run's own files that the
            program has read.
    """
    now, before = record.now, record.before
    if before is None:
        return
    own = own_files(record.began_at)
    if now.continues(before, may_extend=may_extend and not own.read):
        if own.read:
            log.warning("%s. Fix: %s", _reads(own.read), _fix_of_reading(own.read, compares_code=compares_code))
        return
    what = f"the program loops over {now.in_words}, but at the checkpoint it looped over {before.in_words}"
    if own.read:
        fix = f"{_fix_of_reading(own.read, compares_code=compares_code)}; {before.in_words} then continues by itself."
        raise SessionError(what=f"{what}: {_reads(own.read)}.", fix=fix)
    again = f"let it loop over {before.in_words}, which continues by itself after a resume"
    if own.written:
        what += f"; this run has written {_names(own.written)}, which may set the start of the range"
        again += ", and read no file of its own if run.is_active"
    drifts = " (then --accept-drift)" if compares_code else ""
    end = f"set the end by an argument of the command or by the config{drifts}"
    fix = f"{again}; to train longer or shorter, {end}, or call run.finish(reason)."
    raise SessionError(what=f"{what}.", fix=fix)


def require_numbers(looped: LoopRange) -> None:
    """Raise an error if the range of a new run's loop is empty.

    Raises:
        SessionError: the range is empty; the message names the files that the program has read.
    """
    if not looped.is_empty:
        return
    what = f"the program loops over {looped.in_words}, which has no numbers"
    fix = "give it a range with numbers."
    if read := opened_files()[-_MOST_NAMED:]:
        what += f"; it has read {_names(read)}, which may be from another training"
        fix = f"let the program read its own checkpoint only `if not run.is_active`, or delete {_names(read)}."
    raise SessionError(what=f"{what}: nothing would be trained.", fix=fix)


def _reads(read: Sequence[str]) -> str:
    return f"the program has read {_names(read)}, written by this run; segue restores tracked state without it"


def _fix_of_reading(read: Sequence[str], *, compares_code: bool) -> str:
    accept = ", and start the run with --accept setup.code" if compares_code else ""
    return f"let it read {_names(read)} only `if not run.is_active`{accept}"


def _names(files: Sequence[str]) -> str:
    return " and ".join(files)


class LoopEnding:
    """The state of the end of a program's training."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """The program's reason to end the run; None if the program does not end the run."""
        self.error: Exception | None = None
        """The error that ended the attempt, even if the program caught this error."""
        self.reason: StopReason | None = None
        """Stop reason of the attempt; None while the attempt trains, or if the program left its loop."""


class ProgramLoop:
    """The program's loop, from the call that begins it."""

    def __init__(self, spec: RunSpec, owner: Owner, *, compares_code: bool) -> None:
        """If `compares_code` is False, a person is editing the script, and therefore a later goal is accepted."""
        self._spec, self._owner, self._compares_code = spec, owner, compares_code
        self.call = ""
        """The call that begins the loop, without its arguments; empty before the call."""
        self.epoch: Epoch | None = None
        """The current epoch of `run.epochs()`; None in a loop over steps."""
        self._goal = math.inf

    @property
    def goal(self) -> int:
        """The step at which the run ends, as far as it is known now."""
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
        """Begin the loop over these numbers, and return the component that records the numbers. `require` checks the
        returned component.

        Raises:
            SessionError: the program already has a loop, or segments end after epochs but the loop has no epochs.
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
            SessionError: no step is left to train, or the range does not continue the checkpoint's range.
        """
        if not self._owner.stored:
            require_numbers(record.now)
        may_extend = not self._compares_code or CODE in self._spec.continuity.accept
        require_continued(record, self._owner.own_files, may_extend=may_extend, compares_code=self._compares_code)

    def finish_reason_of_ranks(self, own: str | None) -> str | None:
        """Return why the program ends the run; None if no rank ends the run. `own` is the reason of this rank. Every
        rank must call this method, while no step is open: the numbers of an open step are exchanged first."""
        if self._owner.ranks.all(own is None):
            return None
        return own or FINISHED_ELSEWHERE

    def ended_early(self, step: int) -> SessionError:
        """The error of a program that has returned after this step, before its loop ended."""
        what = f"the program ended at step {step} of {self._spec.steps}, before {self.call} ended."
        fix = f"let the loop over {self.call} run to its end, or call run.finish(reason)."
        return SessionError(what=what, fix=fix)

    def set_goal(self, steps: int) -> None:
        """Set the number of steps in the range."""
        self._goal = steps
        if self._spec.steps < steps:
            log.warning("the run ends before the program's goal steps=%d goal=%d", self._spec.steps, steps)
