"""The safe point between two steps: the common decision of all ranks to stop or to save, the reaction to notices and
hints, and the time between full votes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from segue.checkpoints.saving.committer import Writer
from segue.policy.save_interval import NOTICE_SHARE, LastSave
from segue.records import Notice, StopReason
from segue.trainer.process.context import AttemptContext
from segue.trainer.ranks.collectives import FINISHED_ELSEWHERE, Vote, agree
from segue.trainer.resuming.resume import Resume
from segue.trainer.saving import Saving
from segue.trainer.time_left import Pace, TimeLeft
from segue.trainer.workloads.base import Workload
from segue.trainer.workloads.components import Component
from segue.trainer.workloads.state import unchanged

log = logging.getLogger(__name__)

_MOST_SECONDS = 5.0
_OF_TIME_LEFT = 0.1
"""Longest run time of the hook, as a share of the time until the preemption."""


def hook_seconds(seconds_left: float | None, last_save: LastSave | None) -> float:
    """Longest wait for the hook, in seconds, that leaves time for the last save. If there is no time for the hook, the
    result is 0 or less."""
    if seconds_left is None:
        return _MOST_SECONDS
    spare = seconds_left
    if last_save is not None and last_save.save:
        spare -= last_save.expected_seconds / NOTICE_SHARE
    return min(_MOST_SECONDS, _OF_TIME_LEFT * seconds_left, spare)


class NoticeHook:
    """Calls the user's `on_notice` function, if there is one."""

    def __init__(self, function: Callable[[Notice], None] | None, *, components: dict[str, Component]) -> None:
        """If the hook changes the random streams or modes in `components`, the changes are undone."""
        self._function, self._components = function, components

    def call(self, notice: Notice, *, limit_seconds: float) -> None:
        """Call the hook, and wait for at most `limit_seconds`. If the hook raises an exception, this method does not
        raise it."""
        function = self._function
        if function is None:
            return
        if limit_seconds <= 0:
            log.warning("on_notice not called: no time is left kind=%s", notice.kind)
            return

        def work() -> None:
            try:
                function(notice)
            except BaseException as error:
                # Catch even SystemExit, because the hook must not cost the last checkpoint.
                log.error("on_notice raised kind=%s", notice.kind, exc_info=error)

        # The hook runs in a thread. If a connection hangs because the machine is ending, this must not cost the last
        # checkpoint.
        thread = threading.Thread(target=work, name="segue-on-notice", daemon=True)
        with unchanged(self._components):
            thread.start()
            thread.join(limit_seconds)
        if thread.is_alive():
            log.warning("on_notice is too slow, continuing without it kind=%s seconds=%.1f", notice.kind, limit_seconds)


class StopRule:
    """The rule by which the leader decides, at each safe point, whether the attempt stops."""

    def __init__(
        self, context: AttemptContext, live: Workload, *, time_left: TimeLeft, pace: Pace, writer: Writer
    ) -> None:
        self._spec, self._plan, self._board = context.spec, context.plan, context.board
        self._live, self._progress = live, live.progress
        self._time_left, self.pace, self._writer, self._clock = time_left, pace, writer, context.clock

    def reason(self, step: int | None = None) -> StopReason | None:
        """The reason why the attempt stops now; None if the attempt continues. If `step` is given, the result is for
        the safe point after this number of steps."""
        step = self._progress.step if step is None else step
        if self.is_finished(step):
            return StopReason.FINISHED
        first = self._board.first_kind
        if first is not None:
            return StopReason.BOUND if first == "recall" else StopReason.NOTICE
        if self._is_at_planned_end(step) or self._must_leave(step):
            return StopReason.BOUND
        is_near = self._time_left.is_bound_near(
            step_seconds=self.pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return StopReason.BOUND if is_near else None

    def is_finished(self, step: int) -> bool:
        """Whether the run reaches its goal with this number of steps, or the training code has ended the run."""
        return step >= self._spec.steps or self._progress.finish_reason is not None

    def finish_with_others(self) -> None:
        """End the run because all ranks end it. If only another rank has called `finish`, note this as the reason."""
        if not self.is_finished(self._progress.step):
            self._progress.finish_reason = FINISHED_ELSEWHERE

    @property
    def seconds_to_bound(self) -> float:
        """Seconds to the attempt's bound; infinite if there is no bound."""
        left = self._time_left.bound_seconds_left
        return math.inf if left is None else left

    def seconds_to_planned_end(self) -> float | None:
        """Seconds to the planned end at the measured pace; None if the goal comes first or the pace is unknown."""
        plan, progress, step_seconds = self._plan, self._progress, self.pace.step_seconds
        if step_seconds is None:
            return None
        ends = [self._time_left.bound_seconds_left]
        if plan.stop_at_step is not None:
            ends.append((plan.stop_at_step - progress.step) * step_seconds)
        if plan.stop_at_epoch is not None:
            ends.append(self._live.steps_to_epoch(plan.stop_at_epoch) * step_seconds)
        nearest = min((end for end in ends if end is not None), default=None)
        goal = (self._spec.steps - progress.step) * step_seconds
        return max(nearest, 0.0) if nearest is not None and nearest < goal else None

    def _must_leave(self, step: int) -> bool:
        spec = self._spec
        if spec.deadline is None or not self.pace.leaves_machine:
            return False
        left, changeover = (spec.deadline - self._clock.now()).total_seconds(), spec.policy.changeover_seconds
        return self.pace.must_leave(steps=spec.steps - step, remaining_seconds=left, changeover_seconds=changeover)

    def _is_at_planned_end(self, step: int) -> bool:
        plan = self._plan
        if plan.stop_at_step is not None and step >= plan.stop_at_step:
            return True
        return plan.stop_at_epoch is not None and self._live.epoch >= plan.stop_at_epoch


class NoticeResponse:
    """The leader's reaction to hints and to the notice that ends the attempt. On other ranks, the object does
    nothing."""

    def __init__(self, context: AttemptContext, live: Workload, saving: Saving) -> None:
        self._board, self._is_leader = context.board, context.ranks.is_leader
        self._progress, self._saving = live.progress, saving
        self._hook = NoticeHook(live.on_notice, components=live.components)

    def follow_hints(self) -> None:
        """For each new hint, request a save at the next safe point. Training continues."""
        for hint in self._board.take_hints() if self._is_leader else ():
            log.info("hint received kind=%s step=%d", hint.kind, self._progress.step)
            self._saving.request()
            self._hook.call(hint, limit_seconds=hook_seconds(self._board.seconds_left(), None))

    def call_hook(self) -> None:
        """Call the recipe's `on_notice` before the last save, if there is a notice and enough time."""
        notice, left = self._board.read(), self._board.seconds_left()
        if notice is None or left is None or not self._is_leader:
            return
        has_work = self._progress.step > self._saving.schedule.saved_step
        last_save = self._saving.in_flight.on_notice(seconds_left=left) if has_work else None
        self._hook.call(notice, limit_seconds=hook_seconds(left, last_save))

    def is_worth_saving(self) -> bool:
        """Whether the last save fits into the time until the preemption."""
        nearest = self._board.nearest()
        if nearest is None or not self._is_leader:
            return True
        kind, left = nearest
        decision = self._saving.in_flight.on_notice(seconds_left=left)
        log.info("notice received kind=%s seconds_left=%.1f decision=%s", kind, left, decision.reason)
        return decision.save


_LEAST_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.02, 0.2
_QUIET_SHARE = 0.02
"""Pause between two full votes, as a share of the time until the next save or stop that the clock triggers."""


class SafePoints:
    """Decides at each safe point whether to stop, to save or to continue."""

    def __init__(
        self,
        context: AttemptContext,
        live: Workload,
        *,
        resume: Resume,
        writer: Writer,
        saving: Saving,
        stop_rule: StopRule,
        notices: NoticeResponse,
    ) -> None:
        self._context, self._live, self._resume, self._writer = context, live, resume, writer
        self._saving, self._stop_rule, self._notices = saving, stop_rule, notices
        self._board, self._clock, self._is_alone = context.board, context.clock, context.ranks.count == 1
        self._has_waited_for_state = False
        self._full_at_seconds = self._full_at_step = 0.0
        """The time and the step of the next full vote. A full vote is due when the time or the step is reached,
        whichever comes first."""
        context.ranks.asks_for_vote = self._asks_for_vote

    def vote(self) -> Vote:
        """Decide the action of all ranks. While `is_quiet` is true, the caller may skip this method. If any rank had a
        notice, the board of every rank contains this notice after the call.

        Raises:
            FencedError, StoreWriteError: the writer has failed with this error since the last vote.
        """
        agreed = self._vote_in_full()
        context = self._context
        self._full_at_seconds = context.clock.monotonic() + (0.0 if agreed.save else self._quiet_seconds)
        ends = (context.plan.stop_at_step, context.spec.steps, self._saving.schedule.next_step)
        is_any_step = (context.plan.stop_at_epoch, context.spec.checkpoints.every_epochs) != (None, None)
        self._full_at_step = 0.0 if is_any_step else min(step for step in ends if step is not None)
        return agreed

    def stops_at(self, step: int) -> bool:
        """Whether the attempt would stop at the safe point after this number of steps. If the result is True, the next
        vote is a full vote."""
        stops = self._stop_rule.reason(step) is not None
        self._full_at_seconds = 0.0 if stops else self._full_at_seconds
        return stops

    def saves_at(self, step: int) -> bool:
        """Whether a save would be due at the safe point after this number of steps. If the result is True, the next
        vote is a full vote."""
        saves = not self._resume.is_pending_after(step) and self._saving.is_due(step)
        self._full_at_seconds = 0.0 if saves else self._full_at_seconds
        return saves

    @property
    def _quiet_seconds(self) -> float:
        left = min(self._stop_rule.seconds_to_bound, self._saving.schedule.seconds_to_next)
        return min(max(_QUIET_SHARE * left, _LEAST_QUIET_SECONDS), _MOST_QUIET_SECONDS)

    @property
    def is_quiet(self) -> bool:
        """Whether the loop may skip the full vote, because neither a stop nor a save can be due yet.

        If steps are short, full votes would take longer than all other work. If there are several ranks, all ranks must
        take part in a full vote, so all of them skip the same votes.
        """
        if not self._is_alone:
            return self._context.ranks.may_skip_vote()
        return not self._is_due(self._live.progress.step)

    def _is_due(self, step: int, *, ahead_seconds: float = 0.0) -> bool:
        """Whether a full vote is due after this number of steps, now or within `ahead_seconds`."""
        is_time_up = self._clock.monotonic() + ahead_seconds >= self._full_at_seconds
        return step >= self._full_at_step or is_time_up or self._is_requested(step)

    def _is_requested(self, step: int) -> bool:
        """Whether a notice, a hint or the user's code makes a full vote necessary after this number of steps."""
        live = self._live
        return live.progress.finish_reason is not None or not self._board.is_empty or live.wants_save(step)

    def _asks_for_vote(self) -> bool:
        """Whether this rank asks the other ranks for a full vote after the step that it makes now."""
        if self._saving.survivors.needs_votes:
            return True
        step = self._live.progress.step + 1
        if not self._context.ranks.is_leader:
            return self._is_requested(step)  # Only the leader decides when to save and when to end the segment.
        # The next vote after a skipped one is a step later.
        return self._is_due(step, ahead_seconds=self._stop_rule.pace.times.newest_seconds or math.inf)

    def _vote_in_full(self) -> Vote:
        self._writer.raise_failure()
        ranks, board = self._context.ranks, self._context.board
        seen = board.nearest()
        for own_seconds in ranks.take_own_times():
            self._stop_rule.pace.rank_times.add(own_seconds)
        is_finished = self._stop_rule.is_finished(self._live.progress.step)
        stop = self._stop_rule.reason() if ranks.is_leader else StopReason.FINISHED if is_finished else None
        can_save = self._live.can_save
        is_early = stop is not None and stop is not StopReason.FINISHED
        if is_early and not can_save and not self._has_waited_for_state:
            # Make one more step, after which a framework writes its state.
            self._has_waited_for_state, stop, seen = True, None, None
        if stop is None:
            self._notices.follow_hints()
        may_save = stop is None and can_save and ranks.is_leader
        wants_save = self._live.wants_save(self._live.progress.step)
        save = may_save and (wants_save or not self._resume.is_pending) and self._saving.is_due()
        waits = save and self._live.is_save_of_this_step
        is_busy, streams = not self._saving.has_room, self._saving.survivors.publish()
        agreed = agree(ranks, Vote(stop, save, is_busy, waits, notice=seen, streams=streams))
        if agreed.stop is None and not self._resume.is_pending:
            self._saving.survivors.keep(agreed.streams)
        if agreed.stop is StopReason.FINISHED:
            self._stop_rule.finish_with_others()
        if agreed.notice is not None:
            # All ranks stop now, so the source may no longer withdraw the notice.
            board.hold()
            kind, seconds_left = agreed.notice
            board.leave(kind, grace_seconds=seconds_left)
        return agreed
