"""The session of a program that has its own training loop, during an attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from segue.continuity.recipe_diff import RANGE
from segue.continuity.state_marks import Marks
from segue.curves.curve_rows import NO_METRICS
from segue.data.streams import streams_kept
from segue.errors import SessionError
from segue.records import Finding, Notice, StopReason
from segue.spec import RunSpec
from segue.trainer.programs.batches import BatchesComponent, SessionBatch
from segue.trainer.programs.loaders import Loaders
from segue.trainer.programs.loop_range import LoopEnding, ProgramLoop
from segue.trainer.programs.owner import AttemptEnded, Owner
from segue.trainer.programs.program_record import ProgramRecord
from segue.trainer.programs.step_measures import Measures, PendingGradients, StepInProgress
from segue.trainer.programs.tracked import Epoch
from segue.trainer.programs.tracked_state import TrackedState
from segue.trainer.workloads.base import StepDue, Steps
from segue.trainer.workloads.state import changed_by_optimizer

log = logging.getLogger(__name__)

_GRADIENTS, _EPOCH = "gradients", "epoch"


class LiveSession:
    """The session of the program in this process, which holds the tracked state and makes the steps."""

    def __init__(self, spec: RunSpec, owner: Owner, *, config: Mapping[str, Any], record: ProgramRecord | None) -> None:
        """If `record` is None, a person started the script, the setup is not compared, and the goal may change."""
        self._spec, self._owner, self._is_goal_kept = spec, owner, record is not None
        self.config = config
        self._state = TrackedState(owner, record)
        self.progress, self.components = self._state.progress, self._state.components
        self._measured: dict[str, Any] = {}
        self._loaders = Loaders(seed=spec.seed)
        self._measures = Measures()
        self._loop = ProgramLoop(spec, owner, compares_code=record is not None)
        self._ending = LoopEnding()
        self._steps: Steps | None = None
        self._due: StepDue | None = None
        self._step = StepInProgress(
            self.progress, components=self.components, measures=self._measures, ranks=owner.ranks
        )
        self._has_own_code_run = self._has_asked_to_save = False
        self.on_notice: Callable[[Notice], None] | None = None
        self._metric: tuple[int, float] | None = None
        """The step after which the metric was measured, and the metric."""

    is_active = True

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def error(self) -> Exception | None:
        """The error that ended the attempt, even if the program caught this error."""
        return self._ending.error

    def track(self, objects: Mapping[str, Any]) -> None:
        self._state.track(objects)

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        self._state.track_variables(namespace, names)

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        return self._state.carry(name, values)

    def batches(self, loader: Any) -> Callable[[], Iterator[tuple[int, Any]]]:
        batches = self._loaders.known(loader)
        if batches is None and self._steps is not None and self._loop.epoch is not None:
            batches = self._loaders.take_over(loader)
        elif batches is None:
            name, batches = self._loaders.new(loader)
            self._state.add(name, {name: batches}, call="run.batches(loader), for the first time")
            self._loaders.put(name, loader, batches)
        return partial(self._pass, batches)

    def report(self, loss: Any, *, lr: Any, grad_norm: Any, metrics: Mapping[str, Any]) -> None:
        self._measures.report(loss, lr=lr, grad_norm=grad_norm, metrics=metrics)

    def save_best(self, metric: float) -> None:
        self._metric = self._steps_so_far, float(metric)

    def measure(self, objects: Mapping[str, Any]) -> None:
        self._measured.update(objects)

    def restore_folder(self, path: Path) -> Path | None:
        return self._state.restore_folder(path)

    def commit_folder(self, path: Path, *, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None) -> None:
        self._state.commit_folder(path, step=self._steps_so_far, instead=instead, best=best)

    @property
    def should_save(self) -> bool:
        self._has_asked_to_save = True
        has_folder = self._state.folder is not None
        return has_folder and self._owner.wants_state(self._steps_so_far, goal=self._loop.own_goal)

    @property
    def can_save(self) -> bool:
        return self._state.folder is None or self._state.folder.is_of(self.progress.step)

    @property
    def has_ended_early(self) -> bool:
        return self._steps is None and self.progress.finish_reason is not None

    def finish(self, reason: str) -> None:
        # This must not happen before the state is restored, because the restore would undo the change. It must not
        # happen before the state is compared, because the comparison would report the change.
        self._ending.finish_reason = self._ending.finish_reason or reason
        if self._steps is not None:
            self.progress.finish_reason = self.progress.finish_reason or reason

    def _finish_at_goal(self, reason: str) -> None:
        self.progress.is_finish_kept = self._is_goal_kept
        self.finish(reason)

    @property
    def should_stop(self) -> bool:
        is_finishing = self._ending.finish_reason is not None
        if is_finishing or self._owner.ranks.count > 1:
            return is_finishing  # Each rank learns of a notice at another moment.
        return self._owner.is_stopping(self._steps_so_far)

    @property
    def goal(self) -> int:
        return self._loop.goal

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._owner.evaluating(), streams_kept():
            yield

    def steps(self, numbers: range | None) -> Iterator[int]:
        """Yield the remaining steps. If the attempt ends before the goal, raise AttemptEnded."""
        self._enter("run.steps()", numbers)
        numbers = range(self._spec.steps) if numbers is None else numbers
        self._loop.set_goal(len(numbers))
        while self._safe_point():
            self._open(None)
            yield numbers[self.progress.step]
        self._leave()

    def epochs(self, numbers: range) -> Iterator[int]:
        """Yield the remaining epochs. Each batch of an epoch is a step."""
        epoch = self._loop.epoch = self._loop.epoch or Epoch()
        ending = self._ending
        self._enter("run.epochs()", numbers)
        self._state.add(_EPOCH, {_EPOCH: epoch}, call="run.epochs()")
        while ending.reason is None and ending.finish_reason is None and epoch.index < len(numbers):
            step = self._steps_so_far
            self._loaders.begin_epoch()
            yield numbers[epoch.index]
            if ending.reason is not None:
                break
            if self._steps is None or (self._steps_so_far == step and not self._has_own_code_run):
                what = f"epoch {numbers[epoch.index]} had no batch from run.batches()."
                raise SessionError(what=what, fix="let the inner loop take its batches from run.batches(loader).")
            epoch.index += 1
        if ending.reason is None:
            self._finish_at_goal(f"all {len(numbers)} epochs are done")
            self._safe_point()
        self._leave()

    def conclude(self, raised: BaseException | None) -> StopReason:
        """Return the stop reason of a program that has returned, or has raised the exception `raised`. If an error
        ended the attempt, raise the error again.

        Raises:
            SessionError: the program ended before its goal.
        """
        ending = self._ending
        error = ending.error or raised
        if ending.reason is None and error is None and self._measures.is_reported and self._steps_so_far >= self.goal:
            self._safe_point()  # The program left its loop in the last step, with `break`.
        if ending.reason is None and error is not None and self._steps is not None:
            try:
                self._steps.throw(error)  # The loop may continue without the program, if all is committed.
            except StopIteration as end:
                ending.reason = end.value
        self._measures.close()
        if isinstance(error, AttemptEnded):
            error = None
        if error is not None and ending.reason in (None, StopReason.FINISHED):
            raise error
        if ending.reason is None:
            ending.error = self._loop.ended_early(self.progress.step)
            raise ending.error
        return ending.reason

    @property
    def has_metric(self) -> bool:
        return self.wants_save(self.progress.step)

    is_metric_known = True
    awaits_metric = False

    def wants_save(self, step: int) -> bool:
        return self._metric is not None and self._metric[0] == step

    @property
    def is_save_of_this_step(self) -> bool:
        return self.has_metric or self._state.folder is not None

    def evaluate(self) -> float:
        measured, self._metric = self._metric, None
        assert measured is not None
        return measured[1]

    def call_on_notice(self, function: Callable[[Notice], None]) -> None:
        self._state.refuse_after_first_step("run.on_notice()")
        self.on_notice = function

    @property
    def epoch(self) -> int:
        return self._loop.epoch_index

    def steps_to_epoch(self, epoch: int) -> float:
        return self._loaders.batches_left(epochs=epoch - self.epoch)

    def begin(self, *, is_resumed: bool) -> None:
        return

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        return NO_METRICS

    make_up = finish_step

    def left_out(self) -> frozenset[str]:
        return frozenset()

    def advance(self, start: int, count: int) -> None:
        self._state.step_made()
        if self._state.folder is not None and self.has_metric:
            log.warning("metric ignored, because the folder of its step was not committed step=%d", self.progress.step)
        self.progress.step += 1
        self.progress.samples_seen = start + count

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        return self._state.look_outside(trees)

    def begin_marks(self) -> Marks:
        return self._state.begin_marks(of_values=not self._has_asked_to_save)

    def structure_changes(self) -> tuple[str, ...]:
        return self._state.structure_changes()

    def parameter_norm(self) -> float:
        return self._measures.parameter_norm()

    def changed_by_optimizer(self) -> frozenset[int]:
        return frozenset().union(*map(changed_by_optimizer, self._measures.optimizers.values()))

    def is_same_everywhere(self, tensor: str) -> bool:
        return self._state.is_same_everywhere(tensor)

    def _enter(self, call: str, numbers: range | None) -> None:
        record = self.components[RANGE] = self._loop.enter(call, numbers)
        self._owner.restore({RANGE: record})
        try:
            self._loop.require(record)
        except Exception as error:
            self._ending.error = error
            raise

    def _leave(self) -> None:
        if self._ending.reason is not StopReason.FINISHED:
            raise AttemptEnded(0)

    @property
    def _steps_so_far(self) -> int:
        """Number of steps of the run, including the unfinished step."""
        return self.progress.step + self._step.is_open

    def _pass(self, batches: BatchesComponent) -> Iterator[tuple[int, Any]]:
        """Yield the batches of one pass. Unless the program uses `run.steps()`, each batch is a step."""
        if self._loop.call == "run.steps()":
            yield from ((batches.batches - 1, batch.content) for batch in batches.one_pass())
            return
        if self._loop.epoch is None:
            what = "each batch of run.batches() is a step, but there is no run.epochs() around them."
            raise SessionError(what=what, fix="write `for epoch in run.epochs(n):` around the loop over the batches.")
        batches.leave()
        drawn = batches.one_pass()
        while batches.left != 0:
            if not self._safe_point():
                self._leave()
                return
            batch = next(drawn, None)
            if batch is None:
                # The step is due, but the code after the loop over the batches runs first.
                self._has_own_code_run = True
                return
            self._open(batch)
            yield batches.batches - 1, batch.content
        batches.end(drawn)

    def _safe_point(self) -> bool:
        """Close the last step, if there is one, and prepare the next step. Return False if the attempt ends."""
        if self._loop.ends_before_the_run and self._steps_so_far >= self.goal:
            self._finish_at_goal(f"all {self.goal} steps of the program are done")
        try:
            if self._steps is None:
                self._due = self._first_due()
            else:
                self._due = self._steps.send(self._step.close(epoch=self._loop.epoch_index))
        except StopIteration as end:
            self._ending.reason = end.value
            return False
        except Exception as error:
            self._ending.error = error
            raise
        return True

    def _first_due(self) -> StepDue:
        self._measures.watch(self._state.objects, measured=self._measured)
        is_over = self._ending.finish_reason is not None or self.progress.finish_reason is not None
        pending = {_GRADIENTS: PendingGradients(self._measures)}
        self._state.complete(pending, loaders=self._loaders.by_name, is_over=is_over)
        steps = self._steps = self._owner.begin(self)
        due = next(steps)
        reason = self._loop.finish_reason_of_ranks(self._ending.finish_reason)
        if reason is None:
            return due
        self.finish(reason)
        return steps.send(None)

    def _open(self, batch: SessionBatch | None) -> None:
        """Begin the step that the training loop has prepared."""
        assert self._due is not None
        try:
            self._step.open(self._due, batch, compare_state=not self._has_own_code_run)
        except Exception as error:
            self._ending.error = error
            raise
