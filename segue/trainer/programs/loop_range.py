"""The range of a program's loop, recorded in each checkpoint: a position in another range would be another place."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import xxhash

from segue.errors import SessionError
from segue.trainer.programs.own_files import OwnFiles
from segue.trainer.workloads.opened_files import opened_files

log = logging.getLogger(__name__)

_MOST_NAMED = 3


@dataclass(frozen=True)
class LoopRange:
    """The range over which a program loops."""

    loop: str
    """The call, without its arguments: `run.epochs()`."""
    start: int
    stop: int | None
    """None: the loop has no end of its own, and the run's goal ends it."""
    command: str
    """A hash of the program's command and config: with other ones a program may end elsewhere on purpose."""

    @classmethod
    def of(cls, loop: str, numbers: range | None, *, command: Sequence[str], config: Mapping[str, Any]) -> LoopRange:
        """The range of a loop over these numbers, or without an end, in a program with this command and config."""
        start, stop = (0, None) if numbers is None else (numbers.start, numbers.stop)
        given = [*command, *([json.dumps(config, sort_keys=True)] if config else [])]
        return cls(loop, start, stop, xxhash.xxh3_64_hexdigest(json.dumps(given).encode()))

    @property
    def is_empty(self) -> bool:
        """Whether it has no number at all."""
        return self._end <= self.start

    @property
    def in_words(self) -> str:
        """The call as the program writes it: `run.epochs(8)`, `run.epochs(4, 8)`."""
        arguments = [] if self.stop is None else [self.stop] if self.start == 0 else [self.start, self.stop]
        return self.loop.replace("()", f"({', '.join(map(str, arguments))})")

    def continues(self, before: LoopRange, *, may_extend: bool) -> bool:
        """Whether a position that was recorded in the range `before` is the same place in this one.

        Another end is intended if the program's arguments or config have changed; a later end also with `may_extend`.
        """
        if (self.loop, self.start) != (before.loop, before.start):
            return False
        is_later = self._end > before._end
        return self.stop == before.stop or self.command != before.command or (is_later and may_extend)

    @property
    def _end(self) -> float:
        return math.inf if self.stop is None else self.stop


class RangeRecord:
    """The range as a component: after the restore the recorded range is known, but never put back."""

    def __init__(self, now: LoopRange, *, at: datetime) -> None:
        self.now = now
        self.began_at = at
        """When the run's first attempt began its loop; files that the program writes later are written by training."""
        self.before: LoopRange | None = None
        """The range of the checkpoint; None in a new run, and if the checkpoint has none."""

    def capture(self) -> Any:
        return {"range": asdict(self.now), "began_at": self.began_at.isoformat()}

    def restore(self, tree: Any) -> None:
        self.before, self.began_at = LoopRange(**tree["range"]), datetime.fromisoformat(tree["began_at"])


def require_continued(
    record: RangeRecord, own_files: Callable[[datetime], OwnFiles], *, may_extend: bool, compares_code: bool
) -> None:
    """Pass if the recorded range continues in the range that the program loops over now.

    `may_extend`: a later end alone is no mistake. `compares_code`: a changed program has to be accepted.

    Raises:
        SessionError: it is another range; the message names the run's own files that the program has read.
    """
    now, before = record.now, record.before
    if before is None:
        return
    own = own_files(record.began_at)
    if now.continues(before, may_extend=may_extend and not own.read):
        if own.read:
            log.warning("%s. Fix: %s", _reads(own.read), _fix_of_reading(own.read, compares_code=compares_code))
        return
    what = f"the program loops over {now.in_words}, and at the checkpoint over {before.in_words}"
    if own.read:
        fix = f"{_fix_of_reading(own.read, compares_code=compares_code)}; {before.in_words} then continues by itself."
        raise SessionError(what=f"{what}: {_reads(own.read)}.", fix=fix)
    again = f"let it loop over {before.in_words}, which goes on by itself after a resume"
    if own.written:
        what += f"; this run has written {_names(own.written)}, and it may take where it begins from there"
        again += ", and take nothing from a file of its own where run.is_active"
    drifts = " (then --accept-drift)" if compares_code else ""
    end = f"let an argument of the command, or the config, give the end{drifts}"
    fix = f"{again}; to train longer or shorter, {end}, or call run.finish(reason)."
    raise SessionError(what=f"{what}.", fix=fix)


def require_numbers(looped: LoopRange) -> None:
    """Pass if a run that has trained nothing yet has a step to make.

    Raises:
        SessionError: its loop has no number; the message names the files that the program has read.
    """
    if not looped.is_empty:
        return
    what = f"the program loops over {looped.in_words}, in which there is no number"
    fix = "give it a range with numbers."
    if read := opened_files()[-_MOST_NAMED:]:
        what += f"; it has read {_names(read)}, which may be left from another training"
        fix = f"read a checkpoint of the program's own only `if not run.is_active`, or delete {_names(read)}."
    raise SessionError(what=f"{what}: nothing would be trained.", fix=fix)


def _reads(read: Sequence[str]) -> str:
    return f"the program has read {_names(read)}, which this run has written; what it tracks comes back without that"


def _fix_of_reading(read: Sequence[str], *, compares_code: bool) -> str:
    accept = ", and start the run with --accept setup.code" if compares_code else ""
    return f"let it read {_names(read)} only `if not run.is_active`{accept}"


def _names(files: Sequence[str]) -> str:
    return " and ".join(files)
