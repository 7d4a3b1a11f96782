"""The time until an attempt's preemption or bound, the pace of its steps, and the work that still fits at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from segue.checkpoints.saving.committer import Writer
from segue.clock import Clock
from segue.notices.board import NoticeBoard
from segue.policy.machines.bad_machines import cluster_of
from segue.policy.machines.machine_evidence import usual_step_seconds
from segue.policy.save_interval import NOTICE_SHARE
from segue.records import Machine
from segue.runlog.history import History
from segue.trainer.health.rank_times import RankTimes
from segue.trainer.health.step_times import StepTimes
from segue.trainer.process.context import AttemptContext
from segue.trainer.process.machine_check import machine_here
from segue.trainer.workloads.components import Progress

_UNMEASURED_SAVE_SECONDS = 0.1
"""Assumed duration of a save, in seconds, until the duration of a save is measured."""
_BOARD_POLL_SECONDS = 0.5
REPORT_SECONDS, _REPORT_SHARE = 2.0, 0.1
"""Time that is reserved for the report. The first number is in seconds, the second is a share of the grace period. The
shorter time is reserved."""


class Pace:
    """The measured duration of a step, without the first step of the attempt."""

    def __init__(
        self, *, usual_seconds: float | None = None, may_leave: bool = False, machines: Sequence[Machine] = ()
    ) -> None:
        """If `may_leave` is True, the attempt may leave a slow machine. `machines` has the machine of each rank."""
        self._may_leave, self._is_alone = may_leave, len({each.name for each in machines}) == 1
        self.times, self.rank_times = StepTimes(usual_seconds), RankTimes(machines)
        self.first_step_at: float | None = None
        self.train_seconds, self.train_steps = 0.0, 0

    @classmethod
    def of(cls, context: AttemptContext, history: History) -> Self:
        """The pace of an attempt whose log has this history.

        The attempt may leave a slow machine if the cluster can avoid the machine, and if the previous attempt did not
        leave its machine. If there are several machines, only the machine of a slow rank is known to be slow.
        """
        plan, before = context.plan, [each for each in history.fresh_reports if each.attempt_id is not None]
        own = history.attempt_of(plan.segment, plan.attempt)
        usual = usual_step_seconds(history, own)
        has_left = bool(before) and before[-1].leaves_machine
        machines = context.claim.machines
        may_leave = machine_here(context.device).kind == cluster_of(context.spec) and not has_left
        return cls(usual_seconds=usual, may_leave=may_leave, machines=machines)

    @property
    def leaves_machine(self) -> bool:
        """Whether the attempt leaves its machine at the next planned end, because this machine or the machine of a rank
        is slow."""
        is_slow = self._is_alone and self.times.slowness is not None
        return self._may_leave and (is_slow or bool(self.rank_times.slow))

    def must_leave(self, *, steps: int, remaining_seconds: float, changeover_seconds: float) -> bool:
        """Whether to leave the slow machine now. The result is True if `steps` more steps would miss the deadline on
        this machine, but meet it on a usual machine."""
        if not self.leaves_machine:
            return False
        here = elsewhere = self.times.newest_seconds
        if self.rank_times.slow:
            elsewhere = here - self.rank_times.excess_seconds
        elif self.times.slowness is not None:
            elsewhere = here / self.times.slowness
        return steps * here > remaining_seconds >= changeover_seconds + steps * elsewhere

    def step_done(self, seconds: float, *, at: float) -> None:
        """Count a completed step that took `seconds`, and ended at the time `at` of the monotonic clock."""
        self.times.add(seconds)
        if self.first_step_at is None:
            # The first step includes allocations and compilation, so a rate that includes the first step is too slow.
            self.first_step_at = at
            return
        # Saves and metrics between steps count too, because this rate shows how fast the run approaches its goal.
        self.train_seconds = at - self.first_step_at
        self.train_steps += 1

    @property
    def step_seconds(self) -> float | None:
        """Mean duration of a step, in seconds; None before the second step."""
        return self.train_seconds / self.train_steps if self.train_steps else None


class TimeLeft:
    """The time that an attempt has left, which decides whether some work still fits. `save_seconds` is the duration of
    the last save; None before the first save."""

    def __init__(
        self, board: NoticeBoard, *, bound_seconds: float | None, grace_seconds: float, started_at: float, clock: Clock
    ) -> None:
        self._board, self._bound_seconds, self._grace_seconds = board, bound_seconds, grace_seconds
        self._started_at, self._clock = started_at, clock

    @classmethod
    def of(cls, context: AttemptContext) -> Self:
        """The time that this attempt has left."""
        bound, grace = context.plan.max_seconds, context.spec.grace_seconds
        started_at, clock = context.started_at, context.clock
        return cls(context.board, bound_seconds=bound, grace_seconds=grace, started_at=started_at, clock=clock)

    @property
    def seconds(self) -> float:
        """Seconds since the attempt began."""
        return self._clock.monotonic() - self._started_at

    @property
    def bound_seconds_left(self) -> float | None:
        """Seconds to the bound; None if there is no bound."""
        return None if self._bound_seconds is None else self._bound_seconds - self.seconds

    def is_bound_near(self, *, step_seconds: float | None, save_seconds: float | None) -> bool:
        """Whether the attempt must stop now to end within its bound."""
        if self._bound_seconds is None:
            return False
        reserve = 2 * ((save_seconds or _UNMEASURED_SAVE_SECONDS) + (step_seconds or 0.0))
        return self.seconds + reserve >= self._bound_seconds

    def allows_witness(self, *, step_seconds: float | None, save_seconds: float | None) -> bool:
        """Whether there is time for one more step that only adds a witness row."""
        step_seconds = step_seconds or 1.0
        left = self._board.seconds_left()
        if left is None:
            return self._bound_seconds is None or step_seconds < self._bound_seconds - self.seconds
        needed = (save_seconds or 1.0) + 2 * step_seconds
        return needed < (1 - NOTICE_SHARE) * left

    @property
    def patience_seconds(self) -> float:
        """Seconds to wait for the writer before the next check of the board; 0 if only the time for the report is left.

        If there is no report, the parent notices the end of an attempt only after the heartbeat timeout.
        """
        left = self._board.seconds_left()
        if left is None:
            return _BOARD_POLL_SECONDS
        reserved = min(REPORT_SECONDS, _REPORT_SHARE * self._grace_seconds)
        return min(max(left - reserved, 0.0), _BOARD_POLL_SECONDS)


class TimeAtEnd:
    """Decides which work still fits after the last counted step of an attempt."""

    def __init__(
        self, context: AttemptContext, progress: Progress, *, time_left: TimeLeft, pace: Pace, writer: Writer
    ) -> None:
        self._context, self._progress, self._time_left = context, progress, time_left
        self._pace, self._writer = pace, writer

    @property
    def patience_seconds(self) -> float:
        """Seconds to wait for a save, by the clock of this rank."""
        return self._time_left.patience_seconds

    def has_patience(self) -> bool:
        """Whether to continue to wait for a save."""
        return self._context.ranks.leader_decides(self.patience_seconds > 0)

    def may_step(self) -> bool:
        """Whether one more step may be made. There must be time for the step, and the run must not be finished."""
        has_time = self._time_left.allows_witness(
            step_seconds=self._pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return self._context.ranks.leader_decides(has_time and not self._progress.is_finished(self._context.spec.steps))

    def may_wait(self) -> bool:
        """Whether the end of the attempt may wait for a rehearsal. After a notice or beyond the bound, no wait is
        allowed."""
        left = self._time_left.bound_seconds_left
        self._context.activity.goes_on()
        return self._context.board.first_kind is None and (left is None or left > REPORT_SECONDS)
