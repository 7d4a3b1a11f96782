"""The training loop: segue owns it, the recipe says what a step is.

The safe point is the top of an iteration. There, and only there, the loop reads notices, saves, and stops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import torch

from segue.checkpoints.saving.committer import SealJob, Writer
from segue.checkpoints.saving.staging import StagingArea
from segue.clock import Clock
from segue.continuity import anomalies
from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.verdict import Prelude
from segue.continuity.witness import Witness
from segue.curves.schema import Curve
from segue.data.loader import Batch, Feed
from segue.errors import (
    BrokenResumeError,
    FencedError,
    HungRankError,
    PoisonedStepError,
    RankLostError,
    WorkAtRiskError,
)
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.recipe import Recipe
from segue.records import (
    Environment,
    Heartbeat,
    SegmentReport,
    Skip,
    StopReason,
    WitnessRow,
)
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import MOST_WITNESS_STEPS
from segue.stores.base import StoreReadError, StoreWriteError
from segue.trainer.claim import Claim
from segue.trainer.ranks.consensus import Word, agree, put_together
from segue.trainer.ranks.ddp import spread_again
from segue.trainer.ranks.group import RankGroup
from segue.trainer.rehearsal import ResumeRehearsal, is_due
from segue.trainer.reporting import Account
from segue.trainer.reports import failure_of
from segue.trainer.resume import Resume
from segue.trainer.saving import Saving, life_on
from segue.trainer.state import RNG_PREFIX, Component, Progress
from segue.trainer.step import do_step, to_device
from segue.trainer.time_left import REPORT_SECONDS, Pace, TimeLeft

log = logging.getLogger(__name__)


class TrainingLoop:
    """One attempt, from its first step to its report."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        recipe: Recipe,
        components: dict[str, Component],
        progress: Progress,
        feed: Feed,
        device: torch.device,
        runlog: RunLog,
        claim: Claim,
        resume: Resume,
        staging: StagingArea,
        writer: Writer,
        board: NoticeBoard,
        clock: Clock,
        started_at: float,
        group: RankGroup,
        environment: Environment,
    ) -> None:
        self._group, self._ranks = group, group.ranks
        self._spec, plan = assignment.spec, assignment.plan
        self._recipe, self._components, self._progress = recipe, components, progress
        self._feed, self._device = feed, device
        self._resume, self._writer = resume, writer
        self._board, self._clock = board, clock
        self._witness = Witness(self._spec.continuity.witness_steps)
        self._curve = Curve(
            run=self._spec.run_id,
            segment=plan.segment,
            attempt=plan.attempt,
            attempt_id=claim.attempt_id,
            capacity=plan.capacity.value,
            environment=environment.short_id,
            from_checkpoint=progress.step,
        )
        self._saving = Saving(
            self._spec.checkpoints,
            recipe=recipe,
            components=components,
            progress=progress,
            feed=feed,
            curve=self._curve,
            staging=staging,
            writer=writer,
            life=life_on(plan.capacity, read_history(runlog)),
            clock=clock,
            leads=group.ranks.is_leader,
        )
        due = is_due(assignment, read_history(runlog), ranks=group.ranks.count)
        self._rehearsal = ResumeRehearsal(assignment, runlog, is_due=due)
        self._pace = Pace(clock)
        self._time_left = TimeLeft(
            board,
            bound_seconds=plan.max_seconds,
            grace_seconds=self._spec.grace_seconds,
            started_at=started_at,
            clock=clock,
        )
        self._account = Account(
            plan=plan,
            claim=claim,
            runlog=runlog,
            group=group,
            progress=progress,
            pace=self._pace,
            time_left=self._time_left,
            saving=self._saving,
            writer=writer,
            witness=self._witness,
            board=board,
            clock=clock,
            started_at=started_at,
        )

    def run(self) -> SegmentReport:
        """Train until the goal, the bound, a notice, or trouble; returns what happened.

        The report is in the log by then, unless this attempt was fenced.

        Raises:
            BrokenResumeError: the resume did not continue the run; verdict and report are in the log.
            StoreReadError, StoreWriteError: the log stayed out of reach; no report was written.
            WorkAtRiskError: nothing could be committed for longer than the user allows; likewise.
        """
        try:
            with self._group.shared_failure(), closing(self._saving), closing(self._rehearsal):
                reason = self._train()
            return self._account.append(self._account.report(reason, note=self._writer.trouble))
        except FencedError as error:
            return self._fenced(error)
        except BrokenResumeError as error:
            self._account.append(self._account.report(StopReason.FAILED, failure=failure_of(error), note=str(error)))
            raise
        except PoisonedStepError as error:
            report = self._account.report(StopReason.FAILED, failure=failure_of(error), note=self._writer.trouble)
            return self._account.append(report.model_copy(update={"anomaly": error.anomaly}))
        except RankLostError as error:
            # What that rank had of a save will never be durable: there is nothing to wait for.
            self._writer.give_up()
            report = self._account.report(StopReason.LOST, note=str(error))
            # torchrun signals the others when one is gone; nobody else has given notice then.
            return self._account.append(report.model_copy(update={"notice": None}))
        except (StoreReadError, StoreWriteError, WorkAtRiskError):
            raise  # Storage's fault, not the recipe's: no report, and the controller says `lost`.
        except (Exception, SystemExit) as error:
            # The user's code, in a step, a transform or a metric. The state may be half changed, so it is not
            # saved; what was handed to the writer before is whole, and may still be committed.
            log.error("the recipe raised step=%d", self._progress.step, exc_info=error)
            return self._failed(error)

    def _fenced(self, error: FencedError) -> SegmentReport:
        log.warning("fenced reason=%s", error)
        return self._account.report(StopReason.FENCED, note=str(error))

    def _failed(self, error: BaseException) -> SegmentReport:
        try:
            # A rank that hangs may never write what it has of a save.
            patience = REPORT_SECONDS if isinstance(error, HungRankError) else self._spec.grace_seconds
            self._writer.wait(patience)
            return self._account.append(self._account.report(StopReason.FAILED, failure=failure_of(error)))
        except FencedError as fenced:
            return self._fenced(fenced)

    def describe(self, counter: int) -> Heartbeat:
        """A sign of life; called from the heartbeat's thread."""
        return self._account.heartbeat(counter)

    def _train(self) -> StopReason:
        if self._resume.parent is None:
            self._recipe.model.train()
        batches = self._feed.batches(self._progress.samples_seen)
        self._resume.leave_out(self._left_out())
        self._resume.check_state(self._components)
        try:
            return self._train_on(batches)
        except PoisonedStepError as error:
            log.error("step went bad, nothing of it is kept reason=%s", error.anomaly.sentence)
            self._account.is_ending = True
            self._drain()  # What was handed over before is whole.
            raise

    def _train_on(self, batches: Iterator[Batch]) -> StopReason:
        while (word := self._word_of_all()).stop is None:
            if word.save and word.is_busy:
                self._saving.delay()
            elif word.save:
                self._save(evaluate=True)
            self._step(batches, counts=True)
            self._rehearsal.look()
            if self._progress.step == self._account.from_step + 1:
                self._saving.prepare()
        self._account.is_ending = True
        self._end(word.stop, batches)
        return word.stop

    def _word_of_all(self) -> Word:
        """What all ranks do at this safe point; a notice at one of them is then on the board of each."""
        self._writer.raise_failure()
        notice = self._board.read()
        seen = (notice.kind, self._board.seconds_left() or 0.0) if notice is not None else None
        stop = self._reason_to_stop() if self._ranks.is_leader else None
        save = stop is None and self._ranks.is_leader and not self._resume.is_pending and self._saving.is_due()
        word = agree(self._ranks, Word(stop, save, is_busy=not self._saving.has_room, notice=seen))
        if word.notice is not None:
            kind, seconds_left = word.notice
            self._board.leave(kind, grace_seconds=seconds_left)
        return word

    def _reason_to_stop(self) -> StopReason | None:
        if self._progress.step >= self._spec.steps:
            return StopReason.FINISHED
        notice = self._board.read()
        if notice is not None:
            return StopReason.BOUND if notice.kind == "recall" else StopReason.NOTICE
        is_near = self._time_left.is_bound_near(
            step_seconds=self._pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return StopReason.BOUND if is_near else None

    def _save(self, *, evaluate: bool, is_last: bool = False) -> None:
        self._saving.save(evaluate=evaluate, is_last=is_last)
        self._witness.open(self._progress.step)

    def _step(self, batches: Iterator[Batch], *, counts: bool) -> None:
        """Do one step. With `counts=False` it only bears witness: it comes after the last commit, to be replayed."""
        started = self._clock.monotonic()
        batch = next(batches)
        if batch.start != self._progress.samples_seen:
            log.warning("samples skipped from=%d to=%d", self._progress.samples_seen, batch.start - 1)
        step = self._progress.step + 1
        prelude = self._prelude(step, batch)
        self._resume.before_step(self._components, prelude)
        self._recipe = spread_again(self._recipe, self._device)
        outcome = do_step(
            self._recipe,
            to_device(batch.content, self._device),
            step=step,
            weight=batch.weight,
            before_update=self._saving.barrier,
        )
        outcome, row_input = put_together(
            self._ranks, outcome, weight=batch.weight, fingerprint=prelude.input_fingerprint
        )
        row = WitnessRow(**(prelude._asdict() | {"input_fingerprint": row_input}), **outcome._asdict())
        self._refuse_poison(row, batch)
        self._progress.step = step
        self._group.step = step
        self._progress.samples_seen = batch.start + len(batch.ids)
        recent = self._progress.recent_losses
        self._progress.recent_losses = anomalies.with_loss(recent, row.loss, spec=self._spec.anomalies)
        self._account.loss = row.loss
        self._witness.add(row)
        self._resume.saw(row)
        seconds = self._clock.monotonic() - started
        if counts:
            self._count(row, seconds)
            self._saving.step_done(seconds)
        for sealed_step, rows in self._witness.take_full():
            self._writer.submit(SealJob(sealed_step, rows))
            if counts:
                self._rehearsal.begin(state_bytes=self._writer.last_size_bytes or 0)

    def _prelude(self, step: int, batch: Batch) -> Prelude:
        """Marks of what a step will see. Only rows that bear witness, or are compared with one, have them."""
        if not self._resume.is_pending and not self._witness.wants(step):
            return Prelude(step, "", "", None)
        streams = None
        if self._ranks.count == 1:
            held = {name: c.capture() for name, c in self._components.items() if name.startswith(RNG_PREFIX)}
            streams = streams_fingerprint(held)
        return Prelude(step, batch_fingerprint(batch.ids), input_fingerprint(batch.content), streams)

    def _refuse_poison(self, row: WitnessRow, batch: Batch) -> None:
        """Raise before the row counts: as a witness it would ask of the next attempt to go bad as well."""
        spec, recent = self._spec.anomalies, self._progress.recent_losses
        symptom = anomalies.symptom(row, spec=spec, recent_losses=recent)
        if symptom is None:
            return
        # A replay that goes bad where the run did not has lost something. No batch is to blame for that.
        self._resume.saw(row)
        self._resume.settle()
        where = Skip(samples_seen=batch.start, sample_count=len(batch.ids))
        raise PoisonedStepError(anomaly=symptom.on(where, step=row.step, sample_ids=batch.ids.tolist()))

    def _left_out(self) -> frozenset[str]:
        order = self._feed.order
        starts = order.left_out_of_next(MOST_WITNESS_STEPS, samples_seen=self._progress.samples_seen)
        return frozenset(batch_fingerprint(order.batch(start)) for start in starts)

    def _count(self, row: WitnessRow, seconds: float) -> None:
        self._pace.step_done()
        self._curve.add(
            row,
            epoch=self._feed.order.epoch_of(max(self._progress.samples_seen - 1, 0)),
            samples_seen=self._progress.samples_seen,
            step_seconds=seconds,
            wall_time=self._clock.now(),
        )

    def _end(self, reason: StopReason, batches: Iterator[Batch]) -> None:
        """The last commit and, where there is time, its witness."""
        self._saving.barrier()
        while self._resume.is_pending and self._may_step():
            self._step(batches, counts=True)
        # No time for the whole replay: judge by what there is, or nothing could be kept.
        self._resume.settle()
        reached = replace(self._progress)
        if reached.step > self._saving.saved_step and self._has_time_to_save():
            self._save(evaluate=reason is StopReason.FINISHED, is_last=True)
        self._bear_witness(reached.step, batches)
        self._drain()
        # The steps that bore witness are not part of the run: whoever resumes does them again.
        self._progress.step, self._progress.samples_seen = reached.step, reached.samples_seen

    def _drain(self) -> None:
        """Seal what has rows, and wait until all that was handed to the writer is durable, or time is up."""
        for step, rows in self._witness.take_rest():
            self._writer.submit(SealJob(step, rows))
        while not self._ranks.all(self._writer.wait(self._time_left.patience_seconds)) and self._has_patience():
            self._saving.refuse_risk()  # A store that is away is waited for, until this or a notice runs out.

    def _bear_witness(self, saved: int, batches: Iterator[Batch]) -> None:
        """The steps after the last commit, for whoever resumes from it; the state they make is not kept."""
        try:
            while not self._witness.is_full(saved) and self._may_step():
                self._step(batches, counts=False)
        except FencedError:
            raise
        except PoisonedStepError as error:
            # On every rank alike. Whoever does this step for real will see.
            log.warning("a step after the last commit went bad: %s", error.anomaly.sentence)
        except Exception:
            if self._ranks.count > 1:
                raise  # The others are in the middle of that step.
            # The commit before stands, and so does the reason to stop; whoever does this step for real will see.
            log.warning("a step after the last commit raised; fewer witness rows are sealed", exc_info=True)

    def _may_step(self) -> bool:
        has_time = self._time_left.allows_witness(
            step_seconds=self._pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return self._progress.step < self._spec.steps and self._ranks.leader_says(has_time)

    def _has_time_to_save(self) -> bool:
        if not self._ranks.leader_says(self._is_worth_saving()):
            return False
        while not self._ranks.all(self._saving.wait_for_staging_buffer(self._time_left.patience_seconds)):
            if not self._has_patience():
                return False  # The save before this one is still on its way, and time is up.
        return True

    def _is_worth_saving(self) -> bool:
        left = self._board.seconds_left()
        if left is None or not self._ranks.is_leader:
            return True
        decision = self._saving.on_notice(seconds_left=left)
        log.info("notice: %s", decision.reason)
        return decision.save

    def _has_patience(self) -> bool:
        return self._ranks.leader_says(self._time_left.patience_seconds > 0)
