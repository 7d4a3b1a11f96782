"""The watchdog: ends a trainer that hangs, or that continues after the grace period of a notice.

The watchdog is a thread of the trainer itself, so the watchdog also works after the segment has ended. If no thread of
a trainer can run, the heartbeat of the trainer stops. The run declares the attempt lost, and the segment kills the
trainer.
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
"""A trainer ends itself if it is still alive this many seconds after the grace period of a notice."""
_MOST_GRACE_SECONDS = 30.0
"""For this many seconds after a notice, the watchdog does nothing, even if the notice's deadline seems to have
passed."""
_REPORT_SECONDS = 15.0
"""Longest time to write the report of a hung trainer, in seconds."""
_TOO_LONG = "the notice came during {}, which did not end in time"
_AFTER_LOOP = "the code after the program's loop"
_NOTICE_SECONDS = 5.0
"""Time, in seconds, for the training thread to notice the end of another rank. After this time, the collectives of this
rank are aborted."""
_LOST_SECONDS = 10.0
"""Time, in seconds, for the training thread to notice the loss of a rank. After this time, this process ends itself."""
_BEHIND_LEADER_SECONDS = 60.0
"""Seconds by which the other ranks end themselves later than the leader, because the leader writes the report first."""

_ANSWER_SECONDS, _ANSWER_SHARE = 1.0, 0.25
"""Time that the training thread gets to act on a notice, if the end of the attempt would lose no work. The first number
is in seconds, the second is a share of the grace period. The watchdog uses the shorter time."""

Report = Callable[[StopReason, CodeFailure | None, str | None], object]
"""A function that writes the attempt's report."""


class Captured:
    """A captured state of the attempt, which another thread can commit while the training thread is busy.
    Before the first step, nothing is captured."""

    @property
    def is_all(self) -> bool:
        """Whether all work so far would survive the end of the attempt."""
        return True

    def commit(self, limit_seconds: float) -> None:
        """Let the writer commit the captured state, and wait for the commit for at most `limit_seconds`."""

    def release(self) -> None:
        """Let the writer commit the pending save without its metric. The call returns immediately."""


class Peers(Protocol):
    """The ranks of this attempt."""

    @property
    def count(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...


class Group(Protocol):
    """This rank's view of the other ranks."""

    @property
    def ranks(self) -> Peers: ...

    def break_off(self) -> None:
        """Abort the collectives in which this rank waits for the accelerator of another rank.

        Only the first call has an effect. Every call returns immediately.
        """

    def ended_elsewhere(self) -> SegueError | None:
        """The error with which another rank has ended the attempt. The result is None without an error, or if the
        training thread already knows the error."""

    def take_over(self) -> bool | None:
        """Take over the end of the attempt. Return whether this rank must report, or None if the training thread ends
        the attempt."""


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
        """`report` writes the attempt's report; `leave` is called with the exit code just before the process ends."""
        self._spec, self._activity, self._board = spec, activity, board
        self.report = report
        self.captured = Captured()
        self._group, self._leave = group, leave
        self._parent = Parent()
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the trainer during the block. If the trainer must end, the watchdog ends the process inside the
        block."""
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
            # Count polls instead of seconds, because nothing hangs while the whole process is suspended.
            stood_seconds = stood_seconds + _POLL_SECONDS if activity.mark == seen else 0.0
            seen = activity.mark
            limit = activity.limit_seconds(self._spec, ranks=ranks.count)
            if not ranks.is_leader:
                limit += _BEHIND_LEADER_SECONDS
            if ranks.count > 1:
                if stood_seconds > activity.rank_limit_seconds(self._spec):
                    self._group.break_off()  # Waiting ranks then raise, and name the hung rank.
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
                self.captured.release()  # Ranks end together at a safe point. Their last save needs no metric.
            # A provider's deadline may seem to be past if this machine's clock is wrong.
            had_time = noticed_seconds > min(self._spec.grace_seconds, _MOST_GRACE_SECONDS)
            is_overdue = left is not None and left < -_OVERDUE_SECONDS and had_time
            # If one rank has ended, torchrun sends a signal to the other ranks. This signal is not a notice.
            if is_overdue and not ended_seconds and not self._stop.is_set():
                notice = self._board.read()
                assert notice is not None
                why = f"it did not reach a safe point within the {notice.grace_seconds:.0f} s of the notice"
                self._end(StopReason.NOTICE, f"{why} ({notice.kind}) after step {seen.step}")

    def _answer(self, left: float, *, noticed_seconds: float, seen: Mark) -> None:
        """End the attempt after a notice if the training thread does not reach a safe point in time.

        If no work would be lost, the attempt ends immediately. If work would be lost, the attempt ends when only the
        time for the report is left.
        """
        grace = self._spec.grace_seconds
        # If the provider may withdraw the notice, act as late as possible.
        is_final = self._board.first_kind not in WITHDRAWABLE
        when = moment_to_answer(seen.kind, is_all_captured=self.captured.is_all and is_final)
        reserve = report_seconds(grace)
        if when == "never":
            return
        if when == "at once" and noticed_seconds < min(_ANSWER_SECONDS, _ANSWER_SHARE * grace):
            return
        # A provider's deadline may seem to be past if this machine's clock is wrong.
        had_time = noticed_seconds >= min(grace, _MOST_GRACE_SECONDS) - reserve
        if when == "at the end" and not (left <= reserve and had_time):
            return
        if self._stop.is_set() or not self._activity.take_over(seen):
            return
        patience = left if had_time else max(left, min(grace, _MOST_GRACE_SECONDS) - noticed_seconds)
        note = _TOO_LONG.format(self._doing(seen)) if when == "at the end" else None
        self._end_in_place(self._reason_of_notice(), seen, patience_seconds=patience - reserve, note=note)

    def _end_in_last_step(self, seen: Mark, stood_seconds: float) -> None:
        """End the attempt with the stop reason that the attempt already has, because a step after the last save hangs.
        The attempt does not need this step.

        If the training thread has made progress, the call has no effect.
        """
        if self._activity.take_over(seen):
            reason = self._reason_of_notice() if self._board.first_kind is not None else StopReason.BOUND
            note = f"no step for {stood_seconds:.0f} s after step {seen.step}, while the attempt was ending"
            self._end_in_place(reason, seen, patience_seconds=self._spec.grace_seconds, note=note)

    def _reason_of_notice(self) -> StopReason:
        return StopReason.BOUND if self._board.first_kind == "recall" else StopReason.NOTICE

    def _doing(self, seen: Mark) -> str:
        """A description of the current activity of the training thread."""
        notice = self._board.read()
        doing = notice.phase if notice is not None and notice.phase is not None else seen.kind
        return _AFTER_LOOP if seen.kind == "leaving" else doing

    def _heed_others(self, seconds: float) -> float:
        """Stop waiting for a rank that has ended. Return the number of seconds since this process noticed the end of
        the rank.

        Usually the training thread itself notices that a rank has ended. If the training thread waits for an
        accelerator, and this accelerator waits for the ended rank, the thread cannot notice the end.
        """
        ended = self._group.ended_elsewhere()
        if ended is None:
            return 0.0
        if seconds > _NOTICE_SECONDS:
            self._group.break_off()
        is_lost = isinstance(ended, RankLostError)
        # Earlier saves may still be committed, unless a part of these saves is lost. If one rank has crashed, torchrun
        # kills the other ranks 30 s later.
        limit = _LOST_SECONDS if is_lost else self._spec.grace_seconds + _OVERDUE_SECONDS
        if seconds > limit and (reports := self._group.take_over()) is not None:
            reason = StopReason.LOST if is_lost else stop_reason(ended, kills_before=MemoryKills.now())
            self._end(reason, text_of(ended), failure=None if is_lost else failure_of(ended), reports=reports)
        return seconds + _POLL_SECONDS

    def _end(
        self, reason: StopReason, why: str, *, failure: CodeFailure | None = None, reports: bool | None = None
    ) -> None:
        """Write the report, and end this process and all processes that it started. The function does not return."""
        try:
            self._report_end(reason, why, failure=failure, reports=reports)
        except Exception:
            # Catch any exception, because it must not keep this process alive.
            log.exception("the report of this trainer could not be written")
        finally:
            self._exit(reason)

    def _end_in_place(self, reason: StopReason, seen: Mark, *, patience_seconds: float, note: str | None) -> None:
        """Commit the captured state, write the report, and end this process, in place of the training thread. The
        function does not return."""
        try:
            self._board.hold()
            log.warning(
                "ending the attempt while the training thread is busy phase=%s step=%d", self._doing(seen), seen.step
            )
            self.captured.commit(patience_seconds)
            self._report_within_limit(reason, None, note)
        except FencedError as error:
            log.warning("attempt fenced reason=%s", error)
            reason = StopReason.FENCED
        except Exception:
            # Catch any exception: the training thread is blocked, so nothing else would end this process.
            log.exception("the attempt could not be ended completely after a notice")
        finally:
            self._leave(ExitCode.of(reason))
            self._exit(reason)

    def _exit(self, reason: StopReason) -> None:
        sys.stderr.flush()
        if self._parent.is_alive():
            os._exit(ExitCode.of(reason))  # The parent process ends this process group.
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
    """Return when the watchdog acts on a notice, if the training thread has not reached a safe point. The function is
    pure.

    While the training thread makes steps, it reaches a safe point soon, and can then commit more state. While the
    training thread ends the attempt, that thread itself watches the remaining time. The code after a program's loop may
    use all the remaining time.
    """
    match kind:
        case "ending":
            return "never"
        case "training" | "leaving":
            return "at the end"
    return "at once" if is_all_captured else "at the end"


def report_seconds(grace_seconds: float) -> float:
    """Seconds of the grace period that are reserved for the report. The result is longer than the watchdog's polling
    period."""
    return min(max(0.1 * grace_seconds, 2 * _POLL_SECONDS), 2.0, grace_seconds / 2)


def stacks_of_all_threads() -> str:
    """The call stack of every thread in this process, the newest call first."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
