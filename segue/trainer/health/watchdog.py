"""The watchdog: ends a trainer that hangs, or that does not end within the grace period of a notice.

It is a thread of the trainer itself, so that it also works when the segment that started the trainer is gone. A trainer
in which no thread runs any more stops its heartbeat: it is declared lost, and its segment kills it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from segue.errors import FencedError, RankLostError, SegueError
from segue.launch.assignment import ExitCode
from segue.launch.memory import MemoryKills
from segue.notices.board import WITHDRAWABLE, NoticeBoard
from segue.process import Parent
from segue.records import CodeFailure, StopReason
from segue.spec import RunSpec
from segue.trainer.health.activity import Activity, Kind, Mark
from segue.trainer.health.failures import failure_of, stop_reason
from segue.user_objects import text_of

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_OVERDUE_SECONDS = 5.0
"""How long after a notice's grace period a trainer that nobody killed ends itself."""
_MOST_GRACE_SECONDS = 30.0
"""How long after a notice a trainer is left alone, even if the notice's deadline seems past."""
_REPORT_SECONDS = 15.0
"""How long the report of a trainer that hangs may take."""
_TOO_LONG = "the notice came during {}, which did not end in time"
_AFTER_LOOP = "the code after the program's loop"
_NOTICE_SECONDS = 5.0
"""How long the training thread may take to notice that another rank has ended, before its collectives are ended."""
_LOST_SECONDS = 10.0
"""How long the training thread may take to notice that a rank is lost, before this process ends itself."""
_BEHIND_LEADER_SECONDS = 60.0
"""How much later than the leader another rank ends itself: the leader writes the report."""

_ANSWER_SECONDS, _ANSWER_SHARE = 1.0, 0.25
"""How long the training thread has to answer a notice by itself if none of its work is needed: seconds, and the share
of a short grace period."""

Report = Callable[[StopReason, CodeFailure | None, str | None], object]
"""Writes the attempt's report."""


class Captured(Protocol):
    """The captured part of the attempt's work, which can be committed while the training thread is busy."""

    @property
    def is_all(self) -> bool:
        """Whether nothing would be lost if the attempt ended now."""

    def commit(self, limit_seconds: float) -> None:
        """Let the writer commit this part; wait for the commit, at most `limit_seconds`."""

    def release(self) -> None:
        """Let the save that waits for its metric be committed without the metric. Returns at once."""


class Nothing:
    """Before the first step there is nothing to commit."""

    is_all = True

    def commit(self, limit_seconds: float) -> None:
        return

    def release(self) -> None:
        return


class Peers(Protocol):
    """The ranks that train together."""

    @property
    def count(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...


class Group(Protocol):
    """The facts about the other ranks that are known here."""

    @property
    def ranks(self) -> Peers: ...

    def break_off(self) -> None:
        """End the collectives in which this rank waits for an accelerator, once; returns at once."""

    def ended_elsewhere(self) -> SegueError | None:
        """The error that has ended the attempt at another rank, until the training thread here has noticed that."""

    def take_over(self) -> bool | None:
        """End the attempt here; return whether this rank has to report, or None if the training thread ends it."""


class Watchdog:
    """Watches one trainer process, from its claim to its report."""

    def __init__(
        self,
        spec: RunSpec,
        activity: Activity,
        board: NoticeBoard,
        *,
        report: Report,
        group: Group,
        leave: Callable[[int], None],
    ) -> None:
        """`report` writes the attempt's report; `leave` is called with the exit code just before the end."""
        self._spec, self._activity, self._board = spec, activity, board
        self.report = report
        self.captured: Captured = Nothing()
        self._group, self._leave = group, leave
        self._parent = Parent()
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block ends. Does not return if the trainer has to be ended."""
        thread = threading.Thread(target=self._watch, name="segue-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        activity, ranks, seen = self._activity, self._group.ranks, None
        stood_seconds = noticed_seconds = ended_seconds = 0.0
        while not self._stop.wait(_POLL_SECONDS):
            # Counted in polls, not by the clock: while the whole process is suspended, nothing hangs.
            stood_seconds = stood_seconds + _POLL_SECONDS if activity.mark == seen else 0.0
            seen = activity.mark
            limit = activity.limit_seconds(self._spec, ranks=ranks.count)
            if not ranks.is_leader:
                limit += _BEHIND_LEADER_SECONDS
            if ranks.count > 1:
                if stood_seconds > activity.rank_limit_seconds(self._spec):
                    self._group.break_off()  # The ranks that wait raise, and then name the rank that hangs.
                ended_seconds = self._heed_others(ended_seconds)
            if stood_seconds > limit and activity.makes_last_step and ranks.count == 1:
                self._end_in_last_step(seen, stood_seconds)
            elif stood_seconds > limit:
                doing = "" if seen.kind == "training" else f" while {seen.kind}"
                self._end(StopReason.HUNG, f"no step for {stood_seconds:.0f} s after step {seen.step}{doing}")
            left = self._board.seconds_left()
            noticed_seconds = 0.0 if left is None else noticed_seconds + _POLL_SECONDS
            if left is not None and ranks.count == 1:
                self._answer(left, noticed_seconds=noticed_seconds, seen=seen)
            elif left is not None and seen.kind == "evaluating":
                self.captured.release()  # The ranks end together, at a safe point; their last save needs no metric.
            # A provider's deadline may seem past, if this machine's clock is wrong.
            had_time = noticed_seconds > min(self._spec.grace_seconds, _MOST_GRACE_SECONDS)
            is_overdue = left is not None and left < -_OVERDUE_SECONDS and had_time
            # When one rank is gone, torchrun ends the others by a signal, which is no notice.
            if is_overdue and not ended_seconds and not self._stop.is_set():
                notice = self._board.read()
                assert notice is not None
                why = f"it did not reach a safe point within the {notice.grace_seconds:.0f} s of the notice"
                self._end(StopReason.NOTICE, f"{why} ({notice.kind}) after step {seen.step}")

    def _answer(self, left: float, *, noticed_seconds: float, seen: Mark) -> None:
        """End the attempt on its notice if the training thread does not get to a safe point in time.

        The attempt ends at once if this loses nothing, and otherwise when only the time for the report is left.
        """
        grace = self._spec.grace_seconds
        # A notice that may be withdrawn is answered as late as possible.
        is_final = self._board.first_kind not in WITHDRAWABLE
        when = moment_to_answer(seen.kind, is_all_captured=self.captured.is_all and is_final)
        reserve = report_seconds(grace)
        if when == "never":
            return
        if when == "at once" and noticed_seconds < min(_ANSWER_SECONDS, _ANSWER_SHARE * grace):
            return
        # A provider's deadline may seem past, if this machine's clock is wrong.
        had_time = noticed_seconds >= min(grace, _MOST_GRACE_SECONDS) - reserve
        if when == "at the end" and not (left <= reserve and had_time):
            return
        if self._stop.is_set() or not self._activity.take_over(seen):
            return
        patience = left if had_time else max(left, min(grace, _MOST_GRACE_SECONDS) - noticed_seconds)
        note = _TOO_LONG.format(self._doing(seen)) if when == "at the end" else None
        self._end_in_place(self._reason_of_notice(), seen, patience_seconds=patience - reserve, note=note)

    def _end_in_last_step(self, seen: Mark, stood_seconds: float) -> None:
        """A step after the last save hangs. Nothing needs it, so the attempt ends for the reason it was ending for.

        Returns if the training thread has made progress.
        """
        if self._activity.take_over(seen):
            reason = self._reason_of_notice() if self._board.first_kind is not None else StopReason.BOUND
            note = f"no step for {stood_seconds:.0f} s after step {seen.step}, while the attempt was ending"
            self._end_in_place(reason, seen, patience_seconds=self._spec.grace_seconds, note=note)

    def _reason_of_notice(self) -> StopReason:
        return StopReason.BOUND if self._board.first_kind == "recall" else StopReason.NOTICE

    def _doing(self, seen: Mark) -> str:
        """What the training thread is busy with, in words."""
        notice = self._board.read()
        doing = notice.phase if notice is not None and notice.phase is not None else seen.kind
        return _AFTER_LOOP if seen.kind == "leaving" else doing

    def _heed_others(self, seconds: float) -> float:
        """Do not let this rank wait for another rank that has ended; return how long that end has been known.

        The training thread notices by itself, unless it waits for an accelerator that waits for that rank.
        """
        ended = self._group.ended_elsewhere()
        if ended is None:
            return 0.0
        if seconds > _NOTICE_SECONDS:
            self._group.break_off()
        is_lost = isinstance(ended, RankLostError)
        # Earlier saves may still be committed, unless a part of them is lost. torchrun kills the other ranks 30 s after
        # one has crashed.
        limit = _LOST_SECONDS if is_lost else self._spec.grace_seconds + _OVERDUE_SECONDS
        if seconds > limit and (reports := self._group.take_over()) is not None:
            reason = StopReason.LOST if is_lost else stop_reason(ended, kills_before=MemoryKills.now())
            self._end(reason, text_of(ended), failure=None if is_lost else failure_of(ended), reports=reports)
        return seconds + _POLL_SECONDS

    def _end(
        self, reason: StopReason, why: str, *, failure: CodeFailure | None = None, reports: bool | None = None
    ) -> None:
        """Report, and end this process with everything it started. Does not return."""
        try:
            self._report_end(reason, why, failure=failure, reports=reports)
        except Exception:
            # Any exception: it must not keep this process alive.
            log.exception("the end of this trainer is not reported")
        finally:
            self._exit(reason)

    def _end_in_place(self, reason: StopReason, seen: Mark, *, patience_seconds: float, note: str | None) -> None:
        """Commit what is captured, report, and end this process, in place of the training thread. Does not return."""
        try:
            self._board.hold()
            log.warning(
                "attempt ended while the training thread is busy phase=%s step=%d", self._doing(seen), seen.step
            )
            self.captured.commit(patience_seconds)
            self._report_within_limit(reason, None, note)
        except FencedError as error:
            log.warning("attempt fenced reason=%s", error)
            reason = StopReason.FENCED
        except Exception:
            # Any exception: the training thread is kept out, so nothing else would end this process.
            log.exception("the answer to a notice is not complete")
        finally:
            self._leave(ExitCode.of(reason))
            self._exit(reason)

    def _exit(self, reason: StopReason) -> None:
        sys.stderr.flush()
        if self._parent.is_alive():
            os._exit(ExitCode.of(reason))  # The process that started this one ends its process group.
        os.killpg(0, signal.SIGKILL)

    def _report_within_limit(self, reason: StopReason, failure: CodeFailure | None, why: str | None) -> None:
        writing = threading.Thread(target=self.report, args=(reason, failure, why), daemon=True)
        writing.start()
        writing.join(_REPORT_SECONDS)

    def _report_end(self, reason: StopReason, why: str, *, failure: CodeFailure | None, reports: bool | None) -> None:
        stacks = stacks_of_all_threads()
        log.error("trainer ended by its watchdog reason=%s\n%s", why, stacks)
        if reports is None:
            reports = self._group.ranks.is_leader
        if reports and not self._activity.is_reported:
            if reason is StopReason.HUNG and failure is None:
                failure = CodeFailure(type="Hang", message=why, traceback=stacks)
            self._report_within_limit(reason, failure, why)
        self._leave(ExitCode.of(reason))


def moment_to_answer(kind: Kind, *, is_all_captured: bool) -> Literal["at once", "at the end", "never"]:
    """When a notice is answered although the training thread has not reached a safe point. Pure.

    While that thread makes steps, the next safe point is near, with more to commit. While it ends the attempt, it
    watches the time itself. The code after a program's loop has all the time that there is.
    """
    match kind:
        case "ending":
            return "never"
        case "training" | "leaving":
            return "at the end"
    return "at once" if is_all_captured else "at the end"


def report_seconds(grace_seconds: float) -> float:
    """The part of the grace period that is reserved for the report; more than the watchdog's period."""
    return min(max(0.1 * grace_seconds, 2 * _POLL_SECONDS), 2.0, grace_seconds / 2)


def stacks_of_all_threads() -> str:
    """The stack of every thread of this process, the newest call first."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
