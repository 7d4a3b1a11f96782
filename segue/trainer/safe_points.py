"""The safe point between two steps: the common decision of all ranks, and the time between full votes."""

from __future__ import annotations

from segue.checkpoints.saving.committer import Writer
from segue.records import StopReason
from segue.trainer.process.context import AttemptContext
from segue.trainer.ranks.consensus import Vote, agree
from segue.trainer.resuming.resume import Resume
from segue.trainer.saving import Saving
from segue.trainer.stopping import NoticeResponse, StopRule
from segue.trainer.workloads.base import Workload

_LEAST_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.02, 0.2
_QUIET_SHARE = 0.02
"""Pause between full votes, as a share of the time until the next save or stop that depends on the clock."""
_NOTHING = Vote()


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
        self._has_waited_for_state = False
        self._full_at_seconds = self._full_at_step = 0.0
        """The time and the step of the next full vote. The vote comes at this time or at this step, whichever is
        first."""

    def vote(self) -> Vote:
        """Decide the action of all ranks. If one rank had a notice, the notice is on the board of every rank after this
        call.

        Raises:
            FencedError, StoreWriteError: the writer has failed with this error since the last vote.
        """
        if self._is_quiet:
            return _NOTHING
        agreed = self._vote_in_full()
        context = self._context
        self._full_at_seconds = context.clock.monotonic() + (0.0 if agreed.save else self._quiet_seconds)
        ends = (context.plan.stop_at_step, context.spec.steps, self._saving.schedule.next_step)
        is_any_step = context.plan.stop_at_epoch is not None
        self._full_at_step = 0.0 if is_any_step else min(step for step in ends if step is not None)
        return agreed

    def stops_at(self, step: int) -> bool:
        """Whether the attempt would stop at the safe point after this number of steps. If so, the next vote is a full
        vote."""
        stops = self._stop_rule.reason(step) is not None
        self._full_at_seconds = 0.0 if stops else self._full_at_seconds
        return stops

    def saves_at(self, step: int) -> bool:
        """Whether a save would be due at the safe point after this number of steps. If so, the next vote is a full
        vote."""
        saves = not self._resume.is_pending_after(step) and self._saving.is_due(step)
        self._full_at_seconds = 0.0 if saves else self._full_at_seconds
        return saves

    @property
    def _quiet_seconds(self) -> float:
        left = min(self._stop_rule.seconds_to_bound, self._saving.schedule.seconds_to_next)
        return min(max(_QUIET_SHARE * left, _LEAST_QUIET_SECONDS), _MOST_QUIET_SECONDS)

    @property
    def _is_quiet(self) -> bool:
        """Whether the full vote can be left out, because no stop and no save can be due so soon after the last full
        vote.

        If steps are short, full votes would take longer than all other work. If there are several ranks, every vote is
        a full vote, because all ranks must take part.
        """
        progress = self._live.progress
        return (
            progress.step < self._full_at_step
            and self._context.clock.monotonic() < self._full_at_seconds
            and self._context.ranks.count == 1
            and progress.finish_reason is None
            and self._context.board.is_empty
            and not self._live.wants_save
        )

    def _vote_in_full(self) -> Vote:
        self._writer.raise_failure()
        ranks, board = self._context.ranks, self._context.board
        seen = board.nearest()
        stop = self._stop_rule.reason() if ranks.is_leader else None
        can_save = self._live.can_save
        is_early = stop is not None and stop is not StopReason.FINISHED
        if is_early and not can_save and not self._has_waited_for_state:
            # Make one more step, after which a framework writes its state.
            self._has_waited_for_state, stop, seen = True, None, None
        if stop is None:
            self._notices.follow_hints()
        may_save = stop is None and can_save and ranks.is_leader
        save = may_save and (self._live.wants_save or not self._resume.is_pending) and self._saving.is_due()
        waits = save and self._live.is_save_of_this_step
        agreed = agree(ranks, Vote(stop, save, is_busy=not self._saving.has_room, waits=waits, notice=seen))
        if agreed.notice is not None:
            # All ranks stop now, so the source may no longer withdraw the notice.
            board.hold()
            kind, seconds_left = agreed.notice
            board.leave(kind, grace_seconds=seconds_left)
        return agreed
