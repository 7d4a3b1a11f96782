"""The saves of an attempt. The module selects the content of each save, and copies the state while training
continues."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_pre_hook

from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.saving.committer import Writer
from segue.checkpoints.saving.save_job import Metric, SaveJob
from segue.checkpoints.saving.staging import Encoded, Staged, StagingArea
from segue.checkpoints.saving.tracing import span
from segue.continuity.recipe_diff import UNTRACKED
from segue.curves.curve_damage import DamageSearch
from segue.curves.curve_rows import Curve
from segue.errors import SessionError, StructureChangedError
from segue.policy.save_interval import Life
from segue.records import Finding
from segue.trainer.health.activity import Activity
from segue.trainer.process.context import AttemptContext
from segue.trainer.save_schedule import SaveSchedule, SavesInFlight
from segue.trainer.step_records import StepRecords
from segue.trainer.survivors import Survivors
from segue.trainer.workloads.base import Workload
from segue.trainer.workloads.components import ModelState, OptimizerState
from segue.trainer.workloads.state import capture

log = logging.getLogger(__name__)

_SHORT_EVALUATION_SECONDS = 1.0
"""Longest evaluation, in seconds, that begins without a copy of the state. If an evaluation is this short, the reaction
to a notice waits until the evaluation ends."""


class Saving:
    """The saves of one attempt. Only the thread of the training loop uses this object, at safe points."""

    def __init__(
        self,
        context: AttemptContext,
        live: Workload,
        *,
        curve: Curve,
        staging: StagingArea,
        writer: Writer,
        life: Life | None,
        damage: DamageSearch | None = None,
    ) -> None:
        self._spec, self._clock, self._activity = context.spec.checkpoints, context.clock, context.activity
        self._leads = context.ranks.is_leader
        """True on the rank that decides when to save and limits the work at risk."""
        self._live, self._curve, self._staging, self._writer = live, curve, staging, writer
        self._components, self._progress = live.components, live.progress
        self.schedule = SaveSchedule(self._spec, step=live.progress.step, life=life, clock=context.clock)
        allowed_seconds = self._spec.max_work_at_risk_seconds
        self.in_flight = SavesInFlight(writer, allowed_seconds=allowed_seconds, clock=context.clock)
        self._late: Staged | None = None
        self.ahead = LookAhead(live)
        """Inspects the state before a save, if possible. If not, the save itself inspects the state."""
        self._held: Staged | None = None
        """A copy of the current state, held while the user's metric is computed. The copy is committed only if a notice
        comes."""
        self._metric = Metric()
        """The metric of the newest save."""
        self._untracked: tuple[Finding, ...] = ()
        self._damage = damage
        self._saved_epoch = live.epoch
        """Number of completed epochs at the newest save."""
        self._has_torn = False
        self.survivors = Survivors(context, live)
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.barrier())

    def close(self) -> None:
        """Remove the hook that this object has registered with torch, and end the search for damage."""
        self._hook.remove()
        self.barrier()
        if self._damage is not None:
            self._damage.close()

    def prepare(self) -> None:
        """Allocate memory for saves in the background. The call must come as soon as the optimizer has its state.

        Raises:
            UnsupportedStateError: the state contains an object that a checkpoint cannot store.
            StructureChangedError: the first step has changed the structure of the state, and a resume would not repeat
                the change.
        """
        self._refuse_changed_structure()
        self._staging.prepare(capture(self._components))

    def barrier(self) -> None:
        """Wait until the copy for the last save is complete. The call must come before the state changes."""
        if self._late is not None:
            with span("barrier"):
                self._late.barrier()
            if self._late.is_torn:
                self._has_torn = True
                self.schedule.torn()
                self.in_flight.torn()
                log.warning("the recipe changes weights outside the optimizer; saves block training from now on")
            self._late = None

    @property
    def has_room(self) -> bool:
        """Whether a staging buffer is free for a save."""
        return self._staging.is_free

    def is_due(self, step: int | None = None) -> bool:
        """Whether a save is due now. If `step` is given, the result is for the moment after this number of steps.

        Raises:
            WorkAtRiskError: no commit succeeded for longer than allowed.
        """
        self.refuse_risk()
        if self._live.wants_save(self._progress.step) or self._ends_epoch:
            self.request()
        return self.schedule.is_due(self._progress.step if step is None else step)

    @property
    def _ends_epoch(self) -> bool:
        """Whether an epoch has ended since the newest save, and the spec asks for a save at the end of this epoch."""
        every = self._spec.every_epochs
        return every is not None and self._live.epoch // every > self._saved_epoch // every

    def request(self) -> None:
        """Let a save become due now, unless a save of this step was already submitted."""
        self.schedule.request(self._progress.step)

    def save(self, *, evaluate: bool, is_last: bool = False) -> None:
        """Submit the current state to the writer. A staging buffer must be free.

        Raises:
            StructureChangedError: the structure that a resume builds could not hold this state; nothing was submitted.
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

    def survived(self, records: StepRecords) -> AbstractContextManager[None]:
        """A `with` block. If another rank is lost during the block, the leader commits alone."""
        return self.survivors.committing(self._commit_alone, records)

    def _commit_alone(self, streams: Mapping[str, Encoded], lost_ranks: tuple[int, ...], limit_seconds: float) -> None:
        self._writer.stop_waiting()
        self._refuse_changed_structure()
        if not self._has_torn and self.wait_for_staging_buffer(limit_seconds):
            self._metric = Metric()
            self._submit(self._captured(is_overlapped=False, others=streams), stall_seconds=0.0, lost_ranks=lost_ranks)
            self._writer.wait(limit_seconds)

    def _captured(self, *, is_overlapped: bool, others: Mapping[str, Encoded] | None = None) -> Staged:
        trees, untracked = self.ahead.take()
        self._untracked += untracked
        for finding in untracked:
            log.warning("training changes state that is in no checkpoint: %s. Fix: %s.", finding.sentence, finding.fix)
        with span("stage", kind="overlapped" if is_overlapped else "blocking"):
            if is_overlapped and not self._has_torn:
                self._late = self._staging.begin(trees, deferred=self._live.changed_by_optimizer())
                return self._late
            return self._staging.take(trees | dict(others or {}), is_whole=others is not None)

    def _submit(self, staged: Staged, *, stall_seconds: float, lost_ranks: tuple[int, ...] = ()) -> None:
        progress, untracked = self._progress, self._untracked
        untracked += self._damage.take() if self._damage is not None else ()
        self._untracked = ()
        self._saved_epoch = self._live.epoch
        self.schedule.submitted(progress.step)
        self.in_flight.submitted(progress.step, stall_seconds=stall_seconds)
        self._writer.submit(
            SaveJob(
                staged=staged,
                step=progress.step,
                samples_seen=progress.samples_seen,
                epoch=self._live.epoch,
                metric=self._metric,
                curve=self._curve.take(),
                untracked=untracked,
                lost_ranks=lost_ranks,
            )
        )

    def _evaluate(self) -> None:
        """Compute the metric of the newest save, while the writer writes the bytes of the save."""
        metric, started = self._metric, self._clock.monotonic()
        self.barrier()  # An evaluation may temporarily change weights.
        try:
            with self._activity.evaluating(), span("evaluate"):
                metric.set(self._live.evaluate())
        finally:
            metric.give_up()  # If the evaluation raised, the commit has no metric.
        self.schedule.evaluated()
        self.in_flight.evaluated(self.schedule.saved_step, self._clock.monotonic() - started)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a copy of the current state during the block, so that `commit_captured` can commit it.

        The block computes the user's metric. If a recent save still uses the staging buffers, no copy is held.
        """
        if (
            self._staging.is_free
            and self._progress.step != self.schedule.saved_step
            and not self._live.structure_changes()
        ):
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
        """Whether every step so far is committed, submitted or held. Another thread reads this property."""
        return self._progress.step == self.schedule.saved_step or self._held is not None

    def commit_captured(self, limit_seconds: float) -> None:
        """Commit the captured state without its metric, and wait for the commit for at most `limit_seconds`.

        If the training thread is blocked, another thread calls this method.
        """
        held, self._held = self._held, None
        if held is not None:
            self._metric = Metric()
            self._submit(held, stall_seconds=0.0)
        self.release_metric()
        self._writer.wait(max(limit_seconds, 0.0))

    def release_metric(self) -> None:
        """Let the writer commit the newest save without its unfinished metric. Another thread calls this method."""
        self._metric.give_up()

    def wait_for_staging_buffer(self, timeout_seconds: float) -> bool:
        """Wait until a staging buffer is free; return False if the time ran out first."""
        give_up_at = self._clock.monotonic() + timeout_seconds
        while not self._staging.is_free:
            self.refuse_risk()
            if self._clock.monotonic() >= give_up_at or self._writer.wait(0.05):
                break
        return self._staging.is_free

    def refuse_risk(self) -> None:
        """Raise WorkAtRiskError if more work is uncommitted than allowed, and further waiting is unlikely to help."""
        if not self._leads:
            return
        if self.in_flight.look():
            self.schedule.adapt(self.in_flight.usual)
        self.in_flight.refuse_risk()

    def end_without_folder(self, *, is_finished: bool) -> None:
        """Handle the end of an attempt if the program gave no folder for the last step.

        Raises:
            SessionError: this step is the last step of the run.
        """
        step, saved = self._progress.step, self.schedule.saved_step
        if is_finished:
            what = f"the run ended at step {step}, and the folder of that step was not committed."
            raise SessionError(what=what, fix="call run.commit_folder(path) in each iteration with run.should_save.")
        log.warning("the last steps are lost, because their folder was not committed from=%d to=%d", saved + 1, step)

    def _refuse_changed_structure(self) -> None:
        with span("structure"):
            changes = self._live.structure_changes()
        if changes:
            raise StructureChangedError(changes=changes, step=self._progress.step, saved_step=self.schedule.saved_step)


@contextmanager
def evaluating(saving: Saving, records: StepRecords, activity: Activity, *, may_hold: bool) -> Iterator[None]:
    """A `with` block for the user's metric after an unsaved step. If a notice comes during the block, the step is
    committed.

    Raises:
        PoisonedStepError: the step made the weights unusable.
    """
    longest = activity.longest_evaluation_seconds
    is_held = may_hold and (longest is None or longest > _SHORT_EVALUATION_SECONDS)
    if is_held:
        records.refuse_poisoned_weights()
    with saving.held() if is_held else nullcontext(), activity.evaluating():
        yield


class _Found(NamedTuple):
    step: int
    untracked: tuple[Finding, ...]
    recorded: Any
    """The record of state outside every component."""
    encoded: Mapping[str, Encoded]
    """Encoded components that only steps change."""


class LookAhead:
    """The preparation of one save, with the parts of the state that are known before the last step is complete."""

    def __init__(self, live: Workload) -> None:
        self._live, self._components = live, live.components
        self._found: _Found | None = None

    @paused_collector()
    def look(self) -> None:
        """Inspect the state after the last step.

        All changes by the step are already queued on the device, so the captured tensors will contain them.
        """
        if self._live.structure_changes():
            return  # The save refuses a changed structure. The state may not even be whole.
        trees = capture(self._components)
        with span("look outside"):
            untracked = self._live.look_outside(trees)
        with span("encode ahead"):
            encoded = {name: Encoded.of(name, trees[name]) for name in self._components if self._is_of_steps(name)}
        self._found = _Found(self._live.progress.step, untracked, trees.get(UNTRACKED), encoded)

    def take(self) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """Return the whole state of this step, and findings about state that is in no component."""
        if self._found is None or self._found.step != self._live.progress.step:
            self.look()
        assert self._found is not None
        found, self._found = self._found, None
        with span("capture"):
            trees: dict[str, Any] = {
                name: found.encoded[name] if name in found.encoded else each.capture()
                for name, each in self._components.items()
                if name != UNTRACKED
            }
        if found.recorded is not None:
            trees[UNTRACKED] = found.recorded
        return trees, found.untracked

    def _is_of_steps(self, name: str) -> bool:
        """Whether only steps change the component. The component does not change when a step's numbers are read."""
        return isinstance(self._components[name], (ModelState, OptimizerState))
