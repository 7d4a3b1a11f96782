"""Saves of an attempt: when one is due, what it contains, and how much work may stay uncommitted."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch.optim.optimizer import register_optimizer_step_pre_hook

from segue.checkpoints.saving.committer import Metric, SaveJob, Writer
from segue.checkpoints.saving.staging import Staged, StagingArea
from segue.checkpoints.saving.tracing import span
from segue.clock import Clock
from segue.curves.schema import Curve
from segue.errors import StructureChangedError, WorkAtRiskError
from segue.policy.save_interval import (
    Cadence,
    CostMeter,
    LastSave,
    Life,
    SaveCost,
    as_asked,
    interval_seconds,
    should_save_on_notice,
)
from segue.records import Capacity, CheckpointRef, Finding
from segue.runlog.history import History
from segue.spec import CheckpointSpec
from segue.trainer.health.activity import Activity
from segue.trainer.step_records import StepRecords
from segue.trainer.workloads.ahead import LookAhead
from segue.trainer.workloads.base import Workload
from segue.trainer.workloads.state import capture

log = logging.getLogger(__name__)

_SHORT_EVALUATION_SECONDS = 1.0
"""A notice may wait for an evaluation that takes no longer, so the state is not copied for it."""


@dataclass(frozen=True)
class _Taken:
    """A safe point that was submitted to the writer."""

    at_seconds: float
    stall_seconds: float
    evaluate_seconds: float = 0.0


class Saving:
    """One attempt's saves. Used at safe points, only from the training loop's thread."""

    def __init__(
        self,
        spec: CheckpointSpec,
        *,
        live: Workload,
        curve: Curve,
        staging: StagingArea,
        writer: Writer,
        life: Life | None,
        activity: Activity,
        clock: Clock,
        leads: bool = True,
    ) -> None:
        """With `leads=False` another rank decides when to save and limits the work at risk."""
        self._leads, self._activity = leads, activity
        self._spec, self._live, self._curve = spec, live, curve
        self._components, self._progress = live.components, live.progress
        self._staging, self._writer, self._life, self._clock = staging, writer, life, clock
        self.saved_step = live.progress.step
        """Step of the newest safe point that was submitted to the writer."""
        self.delayed = 0
        """Saves that became due while the previous one was still being written."""
        self._is_delaying = self._is_owed = False
        self._started_at = self._saved_at = self._safe_at = clock.monotonic()
        self._taken: dict[int, _Taken] = {}
        self._seen: CheckpointRef | None = None
        self._meter = CostMeter()
        self.cadence = self._current_cadence()
        self._late: Staged | None = None
        self.ahead = LookAhead(live)
        """May look before a save, which else does it itself."""
        self._held: Staged | None = None
        """This safe point's state, while the user's metric is computed; to be committed only if a notice comes."""
        self._metric = Metric()
        """That of the newest save."""
        self._untracked: tuple[Finding, ...] = ()
        self._has_torn = False
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.barrier())

    def close(self) -> None:
        """Remove the hook that was registered with torch."""
        self._hook.remove()
        self.barrier()

    def prepare(self) -> None:
        """Allocate memory for saves, in the background; called as soon as the optimizer has its state.

        Raises:
            UnsupportedStateError: the state holds something that is not data.
            StructureChangedError: the first step has changed what no resume would change again.
        """
        self._refuse_changed_structure()
        self._staging.prepare(capture(self._components))

    def barrier(self) -> None:
        """Block until the last safe point is copied; called before the state changes."""
        if self._late is not None:
            with span("barrier"):
                self._late.barrier()
            if self._late.is_torn:
                self._has_torn = self._is_owed = True
                self._taken.pop(max(self._taken, default=0), None)
                log.warning("the recipe changes weights outside the optimizer; saves block training from now on")
            self._late = None

    def step_done(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._meter.step_done(seconds, writer_busy=self._writer.is_busy)

    @property
    def usual(self) -> SaveCost | None:
        """Usual cost of a save; None before the first commit, and on ranks that do not commit."""
        commit = self._writer.last_commit if self._leads else None
        if commit is not None and commit != self._seen:
            self._measure(commit)  # It came since the last safe point.
        return self._meter.estimate

    @property
    def has_room(self) -> bool:
        """Whether a staging buffer is free for a save."""
        return self._staging.is_free

    def is_due(self, step: int | None = None) -> bool:
        """Whether a save is due at this safe point, or would be after this many steps.

        Raises:
            WorkAtRiskError: nothing could be committed for longer than is allowed.
        """
        self.refuse_risk()
        if self._live.wants_save:
            self.request()
        step = self._progress.step if step is None else step
        return step != self.saved_step and (self._is_owed or self._has_interval_passed(step))

    @property
    def next_step(self) -> float:
        """The step at which a save is due whatever the time; infinite without one."""
        every = self.cadence.every_steps
        return math.inf if every is None else (self.saved_step // every + 1) * every

    @property
    def seconds_to_next(self) -> float:
        """Seconds until a save is due by the time; infinite where only steps count."""
        seconds = self.cadence.interval_seconds
        return math.inf if seconds is None else self._saved_at + seconds - self._clock.monotonic()

    def request(self) -> None:
        """Make a save due now, unless this very step was already submitted."""
        self._is_owed = self._is_owed or self._progress.step != self.saved_step

    def delay(self) -> None:
        """Record that a save was due and no staging buffer was free."""
        self.delayed += not self._is_delaying
        self._is_delaying = True

    def save(self, *, evaluate: bool, is_last: bool = False) -> None:
        """Submit this safe point to the writer; a staging buffer must be free.

        Raises:
            StructureChangedError: the state could not be restored into what a resume builds; nothing was submitted.
        """
        self.barrier()
        self._refuse_changed_structure()
        live, self._metric = self._live, Metric()
        if live.has_metric and live.is_metric_known:
            self._metric = Metric(live.evaluate())
        elif live.has_metric and evaluate:
            self._metric = Metric(is_pending=True)
        started = self._clock.monotonic()
        staged = self._captured(is_overlapped=self._spec.staging == "overlapped" and not is_last)
        self._submit(staged, stall_seconds=self._clock.monotonic() - started)
        if not self._metric.is_known:
            self._evaluate()

    def _captured(self, *, is_overlapped: bool) -> Staged:
        trees, untracked = self.ahead.take()
        self._untracked += untracked
        for finding in untracked:
            log.warning("state outside the checkpoint changes in training: %s. Fix: %s.", finding.sentence, finding.fix)
        with span("stage", kind="overlapped" if is_overlapped else "blocking"):
            if is_overlapped and not self._has_torn:
                self._late = self._staging.begin(trees, deferred=self._live.changed_by_optimizer())
                return self._late
            return self._staging.take(trees)

    def _submit(self, staged: Staged, *, stall_seconds: float) -> None:
        progress, untracked = self._progress, self._untracked
        self._saved_at = self._clock.monotonic()
        self._is_delaying = self._is_owed = False
        self.saved_step, self._untracked = progress.step, ()
        self._taken[progress.step] = _Taken(self._saved_at, stall_seconds)
        self._writer.submit(
            SaveJob(
                staged=staged,
                step=progress.step,
                samples_seen=progress.samples_seen,
                epoch=self._live.epoch,
                metric=self._metric,
                curve=self._curve.take(),
                untracked=untracked,
            )
        )

    def _evaluate(self) -> None:
        """Compute the metric of the save that was just submitted. Its bytes are written meanwhile."""
        metric, started = self._metric, self._clock.monotonic()
        self.barrier()  # An evaluation may change the weights for a while.
        try:
            with self._activity.evaluating(), span("evaluate"):
                metric.set(self._live.evaluate())
        finally:
            metric.give_up()  # Where it raised, the commit has none.
        self._saved_at = self._clock.monotonic()
        taken = self._taken.get(self.saved_step)
        if taken is not None:
            taken = replace(taken, evaluate_seconds=self._saved_at - started)
            self._taken[self.saved_step] = taken

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold this safe point's state while the block computes the user's metric: `commit_captured` can commit it.

        Not where the staging buffers are in use, because a save that was made a short while ago is being written.
        """
        if self._staging.is_free and self._progress.step != self.saved_step and not self._live.structure_changes():
            self.barrier()
            self._held = self._captured(is_overlapped=False)
        try:
            yield
        finally:
            if self._held is not None:
                self._staging.release(self._held)
                self._held = None

    @property
    def is_all_captured(self) -> bool:
        """Whether every step so far is committed, submitted or held; read by another thread."""
        return self._progress.step == self.saved_step or self._held is not None

    def commit_captured(self, limit_seconds: float) -> None:
        """Commit what is captured, without its metric; wait for that, at most so long.

        Called by another thread, once the training thread is kept out.
        """
        held, self._held = self._held, None
        if held is not None:
            self._metric = Metric()
            self._submit(held, stall_seconds=0.0)
        self.release_metric()
        self._writer.wait(max(limit_seconds, 0.0))

    def release_metric(self) -> None:
        """Let the newest save be committed without the metric that is being computed. Called by another thread."""
        self._metric.give_up()

    def on_notice(self, *, seconds_left: float) -> LastSave:
        """Whether there is time for one last save."""
        self._look_at_commits()
        in_flight = None
        if self._taken and self._meter.save_seconds is not None:
            passed = self._clock.monotonic() - max(taken.at_seconds for taken in self._taken.values())
            in_flight = max(self._meter.save_seconds - passed, 0.0)
        return should_save_on_notice(
            size_bytes=self._writer.last_size_bytes or 0,
            bytes_per_second=self._meter.bytes_per_second,
            save_seconds=self._meter.save_seconds,
            seconds_left=seconds_left,
            in_flight_seconds_left=in_flight,
        )

    def wait_for_staging_buffer(self, timeout_seconds: float) -> bool:
        """Block until a staging buffer is free; False when time ran out first."""
        give_up_at = self._clock.monotonic() + timeout_seconds
        while not self._staging.is_free:
            self.refuse_risk()
            if self._clock.monotonic() >= give_up_at or self._writer.wait(0.05):
                break
        return self._staging.is_free

    def refuse_risk(self) -> None:
        """Raise WorkAtRiskError when more work is uncommitted than is allowed, and waiting does not help.

        A save that the store has refused so far gets half the allowed time, because the interval before it may have
        used up the other half. A save without any answer gets twice the allowed time, or four times the duration of a
        save, because it may be a large one on a slow network.
        """
        if not self._leads:
            return
        self._look_at_commits()
        now, allowed = self._clock.monotonic(), self._spec.max_work_at_risk_seconds
        if not self._taken or now - self._safe_at <= allowed:
            return
        waiting = now - min(taken.at_seconds for taken in self._taken.values())
        trouble = self._writer.trouble
        if waiting > (allowed / 2 if trouble else max(2 * allowed, 4 * (self._meter.save_seconds or 0.0))):
            why = trouble or f"the store has neither accepted nor refused the save for {waiting:.0f} s."
            raise WorkAtRiskError(at_risk_seconds=now - self._safe_at, allowed_seconds=allowed, why=why)

    def _has_interval_passed(self, step: int) -> bool:
        every, seconds = self.cadence.every_steps, self.cadence.interval_seconds
        if every is not None and step // every > self.saved_step // every:
            return True
        return seconds is not None and self._clock.monotonic() - self._saved_at >= seconds

    def _look_at_commits(self) -> None:
        commit = self._writer.last_commit
        if commit is None or commit == self._seen:
            return
        self._measure(commit)
        before, self.cadence = self.cadence, self._current_cadence()
        if before.reason != self.cadence.reason:
            log.info("save interval changed interval=%s", self.cadence.reason)

    def _measure(self, commit: CheckpointRef) -> None:
        """Count what a commit has cost."""
        self._seen = commit
        taken = self._taken[commit.step]
        self._taken = {step: kept for step, kept in self._taken.items() if step > commit.step}
        self._safe_at = taken.at_seconds
        self._meter.save_done(
            taken.stall_seconds,
            self._writer.last_save_seconds or 0.0,
            self._writer.last_size_bytes or 0,
            evaluate_seconds=taken.evaluate_seconds,
        )

    def _current_cadence(self) -> Cadence:
        spec = self._spec
        if spec.every_steps is not None or spec.every_seconds is not None:
            return as_asked(every_steps=spec.every_steps, every_seconds=spec.every_seconds)
        life = self._life
        if life is not None:
            up_seconds = life.up_seconds + self._clock.monotonic() - self._started_at
            life = Life(up_seconds, life.preemptions)
        return interval_seconds(self._meter.estimate, life=life, max_work_at_risk_seconds=spec.max_work_at_risk_seconds)

    def _refuse_changed_structure(self) -> None:
        with span("structure"):
            changes = self._live.structure_changes()
        if changes:
            raise StructureChangedError(changes=changes, step=self._progress.step, saved_step=self.saved_step)


@contextmanager
def evaluating(saving: Saving, records: StepRecords, activity: Activity, *, may_hold: bool) -> Iterator[None]:
    """The user's metric is computed after a step that no save has yet; a notice meanwhile commits that step.

    Raises:
        PoisonedStepError: the step has spoiled the weights.
    """
    longest = activity.longest_evaluation_seconds
    is_held = may_hold and (longest is None or longest > _SHORT_EVALUATION_SECONDS)
    if is_held:
        records.refuse_poisoned_weights()
    with saving.held() if is_held else nullcontext(), activity.evaluating():
        yield


def life_on(capacity: Capacity, history: History) -> Life | None:
    """The observed lifetime of this capacity; None for capacity that is not preempted."""
    if capacity is not Capacity.SPOT:
        return None
    reports = [report for report in history.last_reports() if report.capacity is capacity and report.got_capacity]
    return Life(
        up_seconds=sum(report.seconds for report in reports),
        preemptions=sum(report.stop_reason.is_preemption for report in reports),
    )
