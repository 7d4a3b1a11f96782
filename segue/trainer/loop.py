"""The training loop. The loop decides when a step is due, and does other work between the steps.

The safe point is the top of an iteration. The loop reads notices, saves, and stops only at a safe point. Other code
makes the steps. The loop is a generator: it yields the next step, and receives the outcome of this step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import replace

from segue.checkpoints.saving import tracing
from segue.checkpoints.saving.committer import Writer
from segue.checkpoints.saving.save_job import SealJob
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.tracing import span
from segue.continuity.verdict import Prelude
from segue.continuity.witness import NORMS_EVERY_STEPS, Witness
from segue.curves.curve_damage import DamageSearch
from segue.errors import FencedError, PoisonedStepError
from segue.policy.anomalies import anomalies_of
from segue.records import SegmentReport, StopReason
from segue.runlog.history import read_history
from segue.trainer.process.context import AttemptContext
from segue.trainer.ranks.collectives import Vote
from segue.trainer.rehearsal import ResumeRehearsal, is_due
from segue.trainer.reporting import AttemptEnd, AttemptReporter, CapturedWork
from segue.trainer.resuming.resume import Resume
from segue.trainer.safe_points import NoticeResponse, SafePoints, StopRule
from segue.trainer.save_schedule import life_on
from segue.trainer.saving import Saving, evaluating
from segue.trainer.step_records import StepBacklog, StepRecords, curve_of, with_marks
from segue.trainer.time_left import Pace, TimeAtEnd, TimeLeft
from segue.trainer.workloads.base import LateStep, StepDue, StepMade, Steps, Workload

log = logging.getLogger(__name__)

_SomeSteps = Generator[StepDue, StepMade | LateStep | None, None]
_OneStep = Generator[StepDue, StepMade | LateStep | None, bool]
"""A generator that yields one step and returns True if the step was made."""

_NOTHING = Vote()
_WAIT_SECONDS = 0.5
"""Longest wait for a staging buffer, in seconds. The ranks then vote again, because a notice may have come."""


class TrainingLoop:
    """One attempt, from its first step to its report."""

    def __init__(
        self, context: AttemptContext, live: Workload, *, resume: Resume, staging: StagingArea, writer: Writer
    ) -> None:
        self._context, self._live, self._resume, self._writer = context, live, resume, writer
        self._spec, self._ranks, self._progress, self._clock = context.spec, context.ranks, live.progress, context.clock
        history = read_history(context.runlog)
        witness = self._witness = Witness(self._spec.continuity.witness_steps)
        # Norms show if the ranks agree, and which batch first had bad gradients.
        is_careful = self._spec.anomalies.non_finite == "skip" or bool(anomalies_of(history.fresh_reports))
        self._always_measures_norms = is_careful or self._ranks.count > 1
        curve = curve_of(context, from_step=live.progress.step)
        self._records = StepRecords(live, spec=self._spec.anomalies, resume=resume, witness=witness, curve=curve)
        life = life_on(context.plan.capacity, history)
        damage = DamageSearch(context.runlog, history, resume.parent) if self._ranks.is_leader else None
        saving = Saving(context, live, curve=curve, staging=staging, writer=writer, life=life, damage=damage)
        self._saving = saving
        due = is_due(context.assignment, history, ranks=self._ranks.count)
        self._rehearsal = ResumeRehearsal(context.assignment, context.runlog, is_due=due, clock=context.clock)
        notices = self._notices = NoticeResponse(context, live, saving)
        pace = Pace.of(context, history)
        self._backlog = StepBacklog(self._records, pace=pace, saves=saving.in_flight, writer=writer, clock=self._clock)
        time_left = TimeLeft.of(context)
        self._at_end = TimeAtEnd(context, live.progress, time_left=time_left, pace=pace, writer=writer)
        rule = StopRule(context, live, time_left=time_left, pace=pace, writer=writer)
        self._safe_points = SafePoints(
            context, live, resume=resume, writer=writer, saving=saving, stop_rule=rule, notices=notices
        )
        self._reporter = AttemptReporter(
            context=context,
            progress=live.progress,
            pace=pace,
            time_left=time_left,
            stop_rule=rule,
            saving=saving,
            writer=writer,
            records=self._records,
        )
        self.settle = self._backlog.settle
        self.describe = self._reporter.heartbeat
        """A function that makes the heartbeat with a given counter, for the heartbeat thread."""
        reporter, call_hook = self._reporter, notices.call_hook
        self.captured = CapturedWork(self._spec, saving=saving, writer=writer, reporter=reporter, call_hook=call_hook)

    def run(self, train: Callable[[], StopReason], *, shows_failure: bool = True) -> SegmentReport:
        """Train until the run reaches its goal, the attempt reaches its bound, a notice comes, or the attempt fails.
        Return the report.

        `train` makes the steps that `steps()` yields; it returns the value or raises the error of `steps()`. With
        `shows_failure=False`, exceptions of the user's code are not logged, because the user sees them anyway.

        If this attempt was not fenced, the report is in the run's log when the call returns.

        Raises:
            BrokenResumeError: the resumed training differs from the run; the log has the verdict and the report.
            StoreReadError, StoreWriteError, UnreadRecordError: the log could not be used; no report was written.
            WorkAtRiskError: no commit succeeded for longer than the spec allows; no report was written.
        """

        def to_its_end() -> StopReason:
            survived, shared = self._saving.survived(self._records), self._context.group.shared_failure()
            with survived, shared, closing(self._saving), closing(self._rehearsal), closing(self._backlog):
                return train()

        end = AttemptEnd(self._context, reporter=self._reporter, writer=self._writer)
        return end.reported(to_its_end, log_level=logging.ERROR if shows_failure else logging.DEBUG)

    def steps(self) -> Steps:
        """Yield the attempt's steps. An exception thrown into the generator ends the attempt before the last commit."""
        self._context.activity.phase = "restore" if self._resume.parent is not None else "first step"
        self._live.begin(is_resumed=self._resume.parent is not None)
        evaluate = self._evaluate if self._live.has_metric and not self._live.is_metric_known else None
        self._resume.check_state(self._live.components, left_out=self._live.left_out(), evaluate=evaluate)
        self._live.make_up(evaluating=self._context.activity.evaluating)
        self._context.activity.phase = "replay" if self._resume.is_pending else "first step"
        try:
            return (yield from self._train())
        except PoisonedStepError as error:
            log.error("anomaly in a step; the step is discarded reason=%s", error.anomaly.sentence)
            self._reporter.is_ending = True
            self._context.activity.ending()
            self._drain()  # Saves from before the step are complete.
            raise

    def _train(self) -> Steps:
        has_settled = False
        while (vote := self._voted()).stop is None:
            is_step_due = not vote.save or self._takes_save(vote)
            if not is_step_due or not (yield from self._step(counts=True)):
                continue
            if not has_settled and not self._resume.is_pending:
                self._context.activity.phase, has_settled = "step", True
            done = self._progress.step - self._reporter.from_step
            if done == 1:
                self._saving.prepare()
            elif done == 2:  # The first step may only be queued. Each rank compiles at its own pace.
                self._ranks.limit_waiting(self._spec.liveness.rank_seconds)
        self._reporter.is_ending = True
        self._context.activity.ending()
        yield from self._end(vote.stop)
        return vote.stop

    def _takes_save(self, vote: Vote) -> bool:
        """Make or delay the due save. Return False if the ranks must vote again before the next step.

        If the user's code gives a metric or a folder for this step, the save cannot be delayed, so it waits until the
        previous save is complete. If a resume is still being compared, the verdict uses only the steps so far, because
        nothing is committed without a verdict.
        """
        if self._resume.is_pending:
            self._records.read()
            self._resume.settle()
            return self._resume.is_pending
        if vote.is_busy and vote.waits:
            with span("wait for the save before"), self._context.activity.saving():
                self._saving.wait_for_staging_buffer(_WAIT_SECONDS)
            return False
        if vote.is_busy:
            self._saving.schedule.delay()
        else:
            self._save(evaluate=True)
        return True

    def _voted(self) -> Vote:
        if self._safe_points.is_quiet:
            return _NOTHING
        with span("safe point"):
            self._backlog.settle()
            self._rehearsal.check()
            return self._safe_points.vote()

    def _save(self, *, evaluate: bool, is_last: bool = False) -> None:
        with span("save", step=self._progress.step), self._context.activity.saving():
            self._saving.ahead.look()
            with span("read the last step"):
                self._records.read()
            with span("look at the weights"):
                self._records.refuse_poisoned_weights()
            self._saving.save(evaluate=evaluate, is_last=is_last)
        self._witness.open(self._progress.step)

    def _step(self, *, counts: bool) -> _OneStep:
        """Make the next step if there is one. If `counts` is False, the step only adds a witness row after the last
        commit."""
        started, before, step = self._clock.monotonic(), self._progress.samples_seen, self._progress.step + 1
        is_pending = self._resume.is_pending
        compares = is_pending or self._witness.wants(step)
        norms = compares or self._always_measures_norms or step % NORMS_EVERY_STEPS == 0
        try:
            made = yield StepDue(compares, norms, self._check, self._saving.barrier, counts and not is_pending)
        except Exception as error:
            self._records.read_before(error, is_alone=self._ranks.count == 1)
            raise
        if made is None:
            return False
        can_wait = counts and not compares and self._records.may_wait(made)
        if not can_wait:
            self._backlog.settle()
            self._records.read()  # Numbers of the previous step, if they came late.
            made = self._with_marks(made)
        self._live.advance(made.start, made.samples)
        self._context.group.step, ended_at = step, self._clock.monotonic()
        self._context.activity.step_done(step, at=ended_at)
        if tracing.IS_ON:
            tracing.record("step", started, ended_at, step=step)
        seconds = ended_at - started
        if isinstance(made, LateStep):
            self._records.keep(made, samples_before=before, seconds=seconds, ended_at=self._clock.now())
            self._backlog.count(seconds, ended_at=ended_at, is_beside_save=self._writer.is_busy)
        elif counts:
            self._count(made, seconds=seconds, ended_at=ended_at, can_wait=can_wait)
        else:
            self._records.add(made)
        if not can_wait:
            self._seal(has_rehearsal=counts)
        return True

    def _with_marks(self, made: StepMade | LateStep) -> StepMade | LateStep:
        """Return the step. If the step's row needs state marks, add the marks.

        Raises:
            PoisonedStepError: the step is an anomaly.
        """
        if isinstance(made, StepMade):
            self._records.refuse_poison(made)
        if not self._is_marked(self._progress.step + 1):
            return made
        if isinstance(made, LateStep):
            return with_marks(made, self._live.begin_marks())
        with span("state marks"):
            return made._replace(row=made.row._replace(state=self._live.begin_marks()()))

    def _count(self, made: StepMade, *, seconds: float, ended_at: float, can_wait: bool) -> None:
        """Count a step, and do the work after it."""
        self._backlog.add(made, seconds=seconds, ended_at=ended_at)
        if not can_wait:
            self._backlog.settle()
        if metrics := self._live.finish_step(evaluating=self._evaluating):
            self._backlog.settle()
            self._records.amend(metrics)

    def _seal(self, *, has_rehearsal: bool) -> None:
        for sealed_step, rows in self._witness.take_full():
            self._writer.submit(SealJob(sealed_step, rows))
            if has_rehearsal:
                self._rehearsal.begin(state_bytes=self._writer.last_size_bytes)

    def _evaluating(self) -> AbstractContextManager[None]:
        self._backlog.settle()
        may_hold = self._ranks.count == 1 and not self._resume.is_pending and self._live.can_save
        return evaluating(self._saving, self._records, self._context.activity, may_hold=may_hold)

    def _evaluate(self) -> float:
        with self._context.activity.evaluating():
            return self._live.evaluate()

    def _is_marked(self, step: int) -> bool:
        """Whether the row of this newest step gets state marks."""
        is_last = self._witness.completes(step) or self._resume.wants_state(step)
        # The next save refuses a structure that no resume can build.
        return is_last and self._ranks.is_leader and not self._live.structure_changes()

    def _check(self, prelude: Prelude, *, compare_state: bool = True) -> None:
        self._resume.before_step(self._live.components, prelude, compare_state=compare_state)

    def is_stopping(self, step: int) -> bool:
        """Whether the attempt would stop at the safe point after this number of steps."""
        return self._reporter.is_ending or self._safe_points.stops_at(step)

    def wants_state(self, step: int) -> bool:
        """Whether the attempt would save or stop at the safe point after this number of steps."""
        if self._reporter.is_ending:
            return False  # State after the last commit is not kept.
        return self._safe_points.stops_at(step) or self._safe_points.saves_at(step)

    def _end(self, reason: StopReason) -> _SomeSteps:
        """Make the last commit. If time is left, also make the witness of this commit."""
        self._saving.barrier()
        self._records.read()
        while self._resume.is_pending and not self._resume.is_undecided and self._at_end.may_step():
            yield from self._last_step(counts=True)
        # If the time is up before the replay ends, the verdict uses the rows so far, because nothing is committed
        # without a verdict.
        self._resume.settle()
        reached = replace(self._progress)
        self._notices.call_hook()
        is_new = reached.step > self._saving.schedule.saved_step
        if is_new and not self._live.can_save:
            self._saving.end_without_folder(is_finished=reason is StopReason.FINISHED)
        elif is_new and not self._resume.is_pending and self._has_time_to_save():
            self._save(evaluate=reason is StopReason.FINISHED, is_last=True)
        yield from self._add_witness(reached.step)
        self._drain()
        # The witness steps are not part of the run. The next attempt makes these steps again.
        self._progress.step, self._progress.samples_seen = reached.step, reached.samples_seen
        self._progress.finish_reason = reached.finish_reason
        if reason is StopReason.FINISHED:
            self._context.activity.phase = "rehearsal"
            self._rehearsal.wait(may_wait=self._at_end.may_wait)
            self._context.activity.leaving()

    def _drain(self) -> None:
        """Seal commits that have witness rows. Wait until all submitted saves are durable or the time is up."""
        for step, rows in self._witness.take_rest():
            self._writer.submit(SealJob(step, rows))
        while not self._ranks.all(self._writer.wait(self._at_end.patience_seconds)) and self._at_end.has_patience():
            self._saving.refuse_risk()  # Waits for an unreachable store, until this limit or a notice ends the wait.

    def _add_witness(self, saved: int) -> _SomeSteps:
        """After the last commit, make steps whose rows are the witness of this commit. A resume replays the witness
        steps. The state after them is not kept."""
        try:
            # An evaluation may take longer than the time left, so the rows end at the first step that needs an
            # evaluation.
            while not self._witness.is_full(saved) and not self._live.awaits_metric and self._at_end.may_step():
                yield from self._last_step(counts=False)
        except FencedError:
            raise
        except PoisonedStepError as error:
            # All ranks raise this error. The next attempt makes the step again and finds the anomaly.
            log.warning("anomaly in a step after the last commit reason=%s", error.anomaly.sentence)
        except Exception:
            if self._ranks.count > 1:
                raise  # The other ranks are in the middle of that step.
            # The last commit and the stop reason do not change. The next attempt makes this step again.
            log.warning("the training code raised after the last commit; fewer witness rows are sealed", exc_info=True)

    def _last_step(self, *, counts: bool) -> _OneStep:
        with self._context.activity.last_step():
            return (yield from self._step(counts=counts))

    def _has_time_to_save(self) -> bool:
        if not self._ranks.leader_decides(self._notices.is_worth_saving()):
            return False
        while not self._ranks.all(self._saving.wait_for_staging_buffer(self._at_end.patience_seconds)):
            if not self._at_end.has_patience():
                return False  # The previous save is still being written, and time is up.
        return True
