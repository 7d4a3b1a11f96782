"""The module handles the numbers of each step as soon as they arrive. Numbers from an accelerator arrive one step
later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from segue.checkpoints.saving.committer import Writer
from segue.checkpoints.saving.tracing import span
from segue.clock import Clock
from segue.continuity import anomalous_steps
from segue.continuity.state_marks import Marks
from segue.continuity.witness import StepRow, Witness
from segue.curves.curve_rows import Curve
from segue.errors import PoisonedStepError
from segue.records import Skip
from segue.spec import AnomalySpec
from segue.trainer.process.context import AttemptContext
from segue.trainer.resuming.resume import Resume
from segue.trainer.save_schedule import SavesInFlight
from segue.trainer.time_left import Pace
from segue.trainer.workloads.base import LateStep, StepMade, Workload

log = logging.getLogger(__name__)


class _Unread(NamedTuple):
    """A counted step whose numbers have not arrived yet."""

    late: LateStep
    samples_before: int
    """Number of samples seen before the step."""
    samples_seen: int
    seconds: float
    ended_at: datetime


class StepRecords:
    """The records of the steps of an attempt. The object refuses anomalous steps, and adds all other steps, in order,
    to the witness, the replay and the loss curve.

    While the numbers of a step are unread, nothing may be committed. Therefore the loop calls `read` before each save
    and at the end.
    """

    def __init__(self, live: Workload, *, spec: AnomalySpec, resume: Resume, witness: Witness, curve: Curve) -> None:
        self._live, self._progress, self._spec = live, live.progress, spec
        self._resume, self.witness, self._curve = resume, witness, curve
        self._newest: StepMade | None = None
        self._unread: _Unread | None = None
        self.loss: float | None = None
        """Loss of the newest recorded step."""

    @property
    def newest(self) -> StepRow | None:
        """The row of the newest step whose numbers were read."""
        return self._newest.row if self._newest is not None else None

    def keep(self, late: LateStep, *, samples_before: int, seconds: float, ended_at: datetime) -> None:
        """Keep this step until its numbers are read. The step is already counted."""
        self._unread = _Unread(late, samples_before, self._progress.samples_seen, seconds, ended_at)

    def read(self) -> None:
        """If the numbers of a step are still unread, read these numbers.

        Raises:
            PoisonedStepError: the step is an anomaly; the position is set back to before the step.
        """
        if self._unread is None:
            return
        late, samples_before, samples_seen, seconds, ended_at = self._unread
        self._unread = None
        made = late.read()
        self._refuse_late(made, samples_before)
        self.add(made)
        self.count(made, samples_seen=samples_seen, seconds=seconds, ended_at=ended_at)

    def read_before(self, error: BaseException, *, is_alone: bool) -> None:
        """Read the numbers of an earlier step after a later step raised `error`. The earlier step may have caused the
        error.

        If there are several ranks, `is_alone` is False. Each rank reads only its own numbers, because the ranks no
        longer exchange numbers.

        Raises:
            PoisonedStepError: the earlier step is an anomaly, which explains `error`.
        """
        if self._unread is None:
            return
        late, samples_before, *_ = self._unread
        self._unread = None
        try:
            made = late.read_alone()
        except RuntimeError as of_device:
            # If the device has failed, nothing can be read from the device, and the exception of the step gives the
            # reason.
            log.debug("the numbers of the previous step are lost error=%s raised=%r", of_device, error)
            return
        # A spike can only be detected in the loss of the whole batch.
        self._refuse_late(made, samples_before, recent_losses=None if is_alone else ())

    def _refuse_late(
        self, made: StepMade, samples_before: int, *, recent_losses: tuple[float, ...] | None = None
    ) -> None:
        try:
            self.refuse_poison(made, recent_losses=recent_losses)
        except PoisonedStepError:
            self._progress.step, self._progress.samples_seen = made.row.step - 1, samples_before
            raise

    def refuse_poison(self, made: StepMade, *, recent_losses: tuple[float, ...] | None = None) -> None:
        """Refuse an anomalous step before its row becomes part of a witness. A replay would have to reproduce such a
        row.

        Raises:
            PoisonedStepError: the step is an anomaly.
        """
        row, recent = made.row, self._progress.recent_losses if recent_losses is None else recent_losses
        symptom = anomalous_steps.symptom(row, spec=self._spec, recent_losses=recent)
        if symptom is None:
            return
        # If a replay has an anomaly that the run did not have, the replay has lost some state. The batch is not the
        # cause.
        self._resume.add_replayed(row)
        self._resume.settle()
        where = Skip(samples_seen=made.start, sample_count=made.samples)
        raise PoisonedStepError(anomaly=symptom.on(where, step=row.step, sample_ids=made.ids.tolist()))

    def refuse_poisoned_weights(self) -> None:
        """If the norms of the last step were not measured, check the weights.

        Raises:
            PoisonedStepError: the last update made the weights unusable.
        """
        made = self._newest
        if made is not None and made.row.param_norm is None and self._spec.non_finite != "off":
            row = made.row._replace(param_norm=self._live.parameter_norm())
            self.refuse_poison(made._replace(row=row))

    def add(self, made: StepMade) -> None:
        """Add a step that passed the anomaly check."""
        row, self._newest = made.row, made
        recent = self._progress.recent_losses
        self._progress.recent_losses = anomalous_steps.with_loss(recent, row.loss, spec=self._spec)
        self.loss = row.loss
        self.witness.add(row)
        self._resume.add_replayed(row)

    def may_wait(self, made: StepMade | LateStep) -> bool:
        """Whether this step can be recorded later. No witness and no replay needs `made`. An anomaly cannot wait."""
        if isinstance(made, LateStep) or self._unread is not None:
            return False
        return self._spec.spikes == "off" and anomalous_steps.is_finite(made.row)

    def amend(self, metrics: Mapping[str, float]) -> None:
        """Add metrics that were measured after the newest step to the row of this step in the loss curve."""
        self._curve.amend(metrics)

    def count(self, made: StepMade, *, samples_seen: int, seconds: float, ended_at: datetime) -> None:
        """Add the step to the loss curve."""
        self._curve.add(
            made.row,
            epoch=made.epoch,
            samples_seen=samples_seen,
            metrics=made.metrics,
            step_seconds=seconds,
            wall_time=ended_at,
        )


class _Counted(NamedTuple):
    """A counted step that is not recorded yet."""

    made: StepMade
    seconds: float
    ended_at: float
    """End of the step, on the monotonic clock."""
    is_beside_save: bool


class StepBacklog:
    """The counted steps whose rows and durations are not recorded yet.

    After each step, the processor's caches hold the data of the training, so the code and data of the records must be
    loaded from memory. If a record is made alone, it takes ten times as long as each of several records that are made
    together. `settle` must be called before the records are used.
    """

    def __init__(self, records: StepRecords, *, pace: Pace, saves: SavesInFlight, writer: Writer, clock: Clock) -> None:
        self._records, self._pace, self._saves = records, pace, saves
        self._writer, self._clock = writer, clock
        self._steps: list[_Counted] = []

    def add(self, made: StepMade, *, seconds: float, ended_at: float) -> None:
        """Keep this step until the next call of `settle`."""
        self._steps.append(_Counted(made, seconds, ended_at, self._writer.is_busy))

    def settle(self) -> None:
        """Record all kept steps."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        now, now_at = self._clock.now(), self._clock.monotonic()
        for made, seconds, ended_at, is_beside_save in steps:
            self._records.add(made)
            wall_time = now - timedelta(seconds=now_at - ended_at)
            self._records.count(made, samples_seen=made.start + made.samples, seconds=seconds, ended_at=wall_time)
            self.count(seconds, ended_at=ended_at, is_beside_save=is_beside_save)

    close = settle

    def count(self, seconds: float, *, ended_at: float, is_beside_save: bool) -> None:
        """Record the duration of a step."""
        self._pace.step_done(seconds, at=ended_at)
        self._saves.step_done(seconds, is_beside_save=is_beside_save)


def curve_of(context: AttemptContext, *, from_step: int) -> Curve:
    """Make the loss curve of an attempt that begins after step `from_step`."""
    return Curve(
        run=context.spec.run_id,
        segment=context.plan.segment,
        attempt=context.plan.attempt,
        attempt_id=context.claim.attempt_id,
        capacity=context.plan.capacity.value,
        environment=context.environment.short_id,
        from_checkpoint=from_step,
    )


def with_marks(late: LateStep, marks: Marks) -> LateStep:
    """Return the late step, with the marks of the state after the step."""

    def read(numbers: Callable[[], StepMade]) -> StepMade:
        made = numbers()
        with span("state marks"):
            return made._replace(row=made.row._replace(state=marks()))

    return late._replace(read=partial(read, late.read), read_alone=partial(read, late.read_alone))
