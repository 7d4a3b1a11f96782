"""A program with a training loop of its own, as an attempt trains it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from segue.checkpoints.format.names import FOLDER, rank_of
from segue.clock import SystemClock
from segue.continuity.recipe_diff import CODE, NOT_STATE, RANGE, RESTORED, UNTRACKED
from segue.continuity.state_marks import Marks, begin_marks
from segue.curves.schema import NO_METRICS
from segue.data.streams import streams_kept
from segue.errors import SessionError
from segue.records import Finding, Notice, StopReason
from segue.spec import RunSpec
from segue.trainer.programs.batches import BatchesComponent, SessionBatch
from segue.trainer.programs.folder import Folder
from segue.trainer.programs.loaders import Loaders
from segue.trainer.programs.loop_range import LoopRange, RangeRecord, require_continued, require_numbers
from segue.trainer.programs.measures import Measures, PendingGradients
from segue.trainer.programs.on_ranks import named_on, refuse_changing_sums, same_on_every_rank
from segue.trainer.programs.outside import of_program
from segue.trainer.programs.owner import AttemptEnded, Owner
from segue.trainer.programs.program_record import ProgramRecord
from segue.trainer.programs.step_in_progress import StepInProgress
from segue.trainer.programs.tracked import AsStored, Carried, Epoch, Variable, components_of_object
from segue.trainer.workloads.base import StepDue, Steps
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.outside import OutsideState
from segue.trainer.workloads.state import PROGRESS, changed_by_optimizer, marked_parts, rng_components
from segue.trainer.workloads.structure import Structure, structure_of_objects
from segue.trainer.workloads.values import RestoredValues

log = logging.getLogger(__name__)

_GRADIENTS, _EPOCH = "gradients", "epoch"


class LiveSession:
    """The tracked objects of one program in this process, and its steps. The host of its session."""

    def __init__(self, spec: RunSpec, owner: Owner, *, config: Mapping[str, Any], record: ProgramRecord | None) -> None:
        """There is no record for a script that was started by hand: its setup is not compared, and when its goal is
        reached, a later attempt may train on with a later goal."""
        self._spec, self._owner, self._record = spec, owner, record
        self.config = config
        self.progress = Progress()
        self.components: dict[str, Component] = {PROGRESS: self.progress}
        owner.restore(self.components)
        self._objects: dict[str, Any] = {}
        self._variables: set[str] = set()
        self._carried: dict[str, Carried] = {}
        self._outside: OutsideState | None = None
        self._measured: dict[str, Any] = {}
        self._folder: Folder | None = None
        self._loaders = Loaders(seed=spec.seed)
        self._measures = Measures()
        self._steps: Steps | None = None
        self._due: StepDue | None = None
        self._step = StepInProgress(
            self.progress, components=self.components, measures=self._measures, ranks=owner.ranks
        )
        self._epoch: Epoch | None = None
        self._loop, self._goal = "", math.inf
        self._is_same_everywhere: Callable[[str], bool] = lambda _: False
        self._has_own_code_run = self._has_asked_to_save = False
        self._structure: Structure | None = None
        self.on_notice: Callable[[Notice], None] | None = None
        self._metric: tuple[int, float] | None = None
        """The number of steps after which the metric was measured, and the metric."""
        self._finish_reason: str | None = None
        self.error: Exception | None = None
        """The error that ended the attempt, even if the program caught it."""
        self.reason: StopReason | None = None
        """Why the attempt ends; None while it trains, or when the program left its loop."""

    is_active = True

    @property
    def step(self) -> int:
        return self.progress.step

    def track(self, objects: Mapping[str, Any]) -> None:
        for name, target in objects.items():
            if self._record is not None:
                self._record.add(name, target)
            refuse_changing_sums(name, target, self._owner.ranks)
            self._add(name, components_of_object(name, target), call=f"run.track({name}=...)", target=target)
            self._objects[name] = target

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            self._add(name, {name: Variable(namespace, name)}, call=f"run.track_variables(..., {name!r})")
            self._variables.add(name)

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        known = self._carried.get(name)
        if known is not None:
            return known.begin(values)
        made = Carried(name, values)
        self._add(name, {name: made}, call=f"run.carry({name!r}, ...)")
        self._carried[name] = made
        return made.namespace

    def batches(self, loader: Any) -> Callable[[], Iterator[tuple[int, Any]]]:
        batches = self._loaders.known(loader)
        if batches is None and self._steps is not None and self._epoch is not None:
            batches = self._loaders.take_over(loader)
        elif batches is None:
            name, batches = self._loaders.new(loader)
            self._add(name, {name: batches}, call="run.batches(loader), for the first time")
            self._loaders.put(name, loader, batches)
        return partial(self._pass, batches)

    def report(self, loss: Any, *, lr: Any, grad_norm: Any, metrics: Mapping[str, Any]) -> None:
        self._measures.report(loss, lr=lr, grad_norm=grad_norm, metrics=metrics)

    def save_best(self, metric: float) -> None:
        self._metric = self._steps_so_far, float(metric)

    def measure(self, objects: Mapping[str, Any]) -> None:
        self._measured |= objects

    def restore_folder(self, path: Path) -> Path | None:
        if self._owner.ranks.count > 1:
            what = f"run.restore_folder() on {self._owner.ranks.count} ranks: a folder is committed by one process."
            raise SessionError(
                what=what, fix="train with ranks = 1, or use run.track() for model and optimizer in place of a folder."
            )
        if self._folder is None:
            self._folder = Folder()
            self._add(FOLDER, {FOLDER: self._folder}, call="run.restore_folder()")
        return self._folder.write_to(path)

    def commit_folder(self, path: Path, *, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None) -> None:
        if self._folder is None:
            what = "run.commit_folder() without run.restore_folder() before the loop."
            raise SessionError(what=what, fix="call run.restore_folder(path), which gives the folder back in a resume.")
        self._folder.take(path, step=self._steps_so_far, instead=instead, best=best)

    @property
    def should_save(self) -> bool:
        self._has_asked_to_save = True
        return self._folder is not None and self._owner.wants_state(self._steps_so_far, goal=self._goal)

    @property
    def can_save(self) -> bool:
        return self._folder is None or (self._folder.step == self.progress.step and self._folder.path is not None)

    @property
    def has_ended_early(self) -> bool:
        return self._steps is None and self.progress.finish_reason is not None

    def finish(self, reason: str) -> None:
        # Not before the state is restored (which would undo the change) and compared (which would report it).
        self._finish_reason = self._finish_reason or reason
        if self._steps is not None:
            self.progress.finish_reason = self.progress.finish_reason or reason

    def _finish_at_goal(self, reason: str) -> None:
        self.progress.is_finish_kept = self._record is not None
        self.finish(reason)

    @property
    def should_stop(self) -> bool:
        if self._finish_reason is not None or self._owner.ranks.count > 1:
            return self._finish_reason is not None  # Each rank learns of a notice at another moment.
        return self._owner.is_stopping(self._steps_so_far)

    @property
    def goal(self) -> int:
        return int(min(self._goal, self._spec.steps))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._owner.evaluating(), streams_kept():
            yield

    def steps(self, numbers: range | None) -> Iterator[int]:
        """The steps that are left; raises AttemptEnded if the attempt ends before the goal."""
        self._enter("run.steps()", numbers)
        numbers = range(self._spec.steps) if numbers is None else numbers
        self._set_goal(len(numbers))
        while self._safe_point():
            self._open(None)
            yield numbers[self.progress.step]
        self._leave()

    def epochs(self, numbers: range) -> Iterator[int]:
        """The epochs that are left. Their batches are the steps."""
        epoch = self._epoch = self._epoch or Epoch()
        self._enter("run.epochs()", numbers)
        self._add(_EPOCH, {_EPOCH: epoch}, call="run.epochs()")
        while self.reason is None and self._finish_reason is None and epoch.index < len(numbers):
            step = self._steps_so_far
            self._loaders.begin_epoch()
            yield numbers[epoch.index]
            if self.reason is not None:
                break
            if self._steps is None or (self._steps_so_far == step and not self._has_own_code_run):
                what = f"epoch {numbers[epoch.index]} had no batch from run.batches()."
                raise SessionError(what=what, fix="let the inner loop take its batches from run.batches(loader).")
            epoch.index += 1
        if self.reason is None:
            self._finish_at_goal(f"all {len(numbers)} epochs are done")
            self._safe_point()
        self._leave()

    def conclude(self, error: BaseException | None) -> StopReason:
        """Why the attempt ended, after the program ended by itself or with `error`, which is raised again if it counts.

        Raises:
            SessionError: the program ended before its goal.
        """
        error = self.error or error
        if self.reason is None and error is None and self._measures.is_reported and self._is_at_goal:
            self._safe_point()  # The program left its loop in the last step, with `break`.
        if self.reason is None and error is not None and self._steps is not None:
            try:
                self._steps.throw(error)  # The loop may continue without the program, if all is committed.
            except StopIteration as end:
                self.reason = end.value
        self._measures.close()
        if isinstance(error, AttemptEnded):
            error = None
        if error is not None and self.reason in (None, StopReason.FINISHED):
            raise error
        if self.reason is None:
            what = f"the program ended at step {self.progress.step} of {self._spec.steps}, before {self._loop} did."
            fix = f"let the loop over {self._loop} go on until it ends by itself, or call run.finish(reason)."
            self.error = SessionError(what=what, fix=fix)
            raise self.error
        return self.reason

    @property
    def has_metric(self) -> bool:
        return self._metric is not None and self._metric[0] == self.progress.step

    is_metric_known = True
    awaits_metric = False

    @property
    def wants_save(self) -> bool:
        return self.has_metric

    @property
    def is_save_of_this_step(self) -> bool:
        return self.has_metric or self._folder is not None

    def evaluate(self) -> float:
        measured, self._metric = self._metric, None
        assert measured is not None
        return measured[1]

    def call_on_notice(self, function: Callable[[Notice], None]) -> None:
        if self._steps is not None:
            raise SessionError(what="run.on_notice() came after the first step.", fix="call it before the loop.")
        self.on_notice = function

    @property
    def epoch(self) -> int:
        return self._epoch.index if self._epoch is not None else 0

    def steps_to_epoch(self, epoch: int) -> float:
        loaders = list(self._loaders)
        if len(loaders) != 1:
            return math.inf
        left, length = loaders[0].left, loaders[0].length
        return math.inf if left is None or length is None else left + (epoch - self.epoch - 1) * length

    def begin(self, *, is_resumed: bool) -> None:
        return

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        return NO_METRICS

    make_up = finish_step

    def left_out(self) -> frozenset[str]:
        return frozenset()

    def advance(self, start: int, count: int) -> None:
        if self._structure is not None:
            self._structure.step_made()
        if self._folder is not None and self.has_metric:
            log.warning(
                "a metric is not noted, because no folder of its step was committed step=%d", self.progress.step
            )
        self.progress.step += 1
        self.progress.samples_seen = start + count

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        return () if self._outside is None else self._outside.look(trees)

    def begin_marks(self) -> Marks:
        kinds: tuple[type, ...] = (nn.Module, torch.optim.Optimizer) if self._has_asked_to_save else (object,)
        names = {name for name, each in self._objects.items() if isinstance(each, kinds)} | {"rng", "modes", "buffers"}
        if not self._has_asked_to_save:
            names |= self._variables | self._carried.keys()
        tracked = {name: c for name, c in self.components.items() if name.partition(".")[0] in names}
        return begin_marks(marked_parts(tracked))

    def structure_changes(self) -> tuple[str, ...]:
        return () if self._structure is None else self._structure.changes()

    def parameter_norm(self) -> float:
        return self._measures.parameter_norm()

    def changed_by_optimizer(self) -> frozenset[int]:
        return frozenset().union(*map(changed_by_optimizer, self._measures.optimizers.values()))

    def is_same_everywhere(self, tensor: str) -> bool:
        return self._is_same_everywhere(tensor)

    def _add(self, name: str, found: dict[str, Component], *, call: str, target: Any = None) -> None:
        if self._steps is not None:
            raise SessionError(what=f"{call} came after the first step.", fix="call it before the loop.")
        # A name with a dot would look like a part of another component, and components of reserved names are not
        # compared.
        taken = [each for each in found if each in self.components or each in NOT_STATE]
        if taken or not name.isidentifier():
            what = f"{call}: the name {(taken or [name])[0]!r} is taken or is no plain name."
            raise SessionError(what=what, fix="give it another name.")
        named = named_on(self._owner.ranks, target, found)
        self.components |= named
        self._owner.restore(named)

    def _enter(self, loop: str, numbers: range | None) -> None:
        if self._loop:
            what = f"{loop} was called after {self._loop}."
            raise SessionError(what=what, fix="use one loop over run.steps() or run.epochs() for the whole training.")
        if self._epoch is None and self._spec.segment.epochs is not None:
            what = f"segments end after epochs (segment.epochs), and a program with {loop} counts none."
            raise SessionError(what=what, fix="let it loop over run.epochs(n), or use segment.steps or segment.hours.")
        self._loop = loop
        assert self._spec.program is not None
        looped = LoopRange.of(loop, numbers, command=self._spec.program.command, config=self._spec.config)
        record = self.components[RANGE] = RangeRecord(looped, at=SystemClock().now())
        self._owner.restore({RANGE: record})
        try:
            if not self._owner.stored:
                require_numbers(looped)
            compares_code = self._record is not None
            may_extend = not compares_code or CODE in self._spec.continuity.accept
            require_continued(record, self._owner.own_files, may_extend=may_extend, compares_code=compares_code)
        except SessionError as error:
            self.error = error
            raise

    def _set_goal(self, goal: int) -> None:
        self._goal = goal
        if self._spec.steps < goal:
            log.warning("the run ends before the program's goal steps=%d goal=%d", self._spec.steps, goal)

    def _leave(self) -> None:
        if self.reason is not StopReason.FINISHED:
            raise AttemptEnded(0)

    def _stored_of_this_rank(self) -> Iterator[str]:
        stored, rank = self._owner.stored, self._owner.ranks.rank
        return (name for name in stored if rank_of(name, stored) in (None, rank))

    @property
    def _steps_so_far(self) -> int:
        """Steps of the run, including the one that is being made."""
        return self.progress.step + self._step.is_open

    @property
    def _is_at_goal(self) -> bool:
        return self._steps_so_far >= self.goal

    def _pass(self, batches: BatchesComponent) -> Iterator[tuple[int, Any]]:
        """One pass over a loader. If no other loop makes the steps, each batch is a step."""
        if self._loop == "run.steps()":
            yield from ((batches.batches - 1, batch.content) for batch in batches.one_pass())
            return
        if self._epoch is None:
            what = "the batches of run.batches() are steps, and there is no run.epochs() around them."
            raise SessionError(what=what, fix="write `for epoch in run.epochs(n):` around the loop over the batches.")
        batches.leave()
        drawn = batches.one_pass()
        while batches.left != 0:
            if not self._safe_point():
                self._leave()
                return
            batch = next(drawn, None)
            if batch is None:
                # The step is due, but the code after the loop over the batches comes first.
                self._has_own_code_run = True
                return
            self._open(batch)
            yield batches.batches - 1, batch.content
        batches.end(drawn)

    def _safe_point(self) -> bool:
        """Close the step that was made, if there is one, and make the next one due. False: the attempt ends."""
        if self._is_at_goal and self._goal < self._spec.steps:
            self._finish_at_goal(f"all {self._goal} steps of the program are done")
        try:
            if self._steps is None:
                self._due = self._first_due()
            else:
                self._due = self._steps.send(self._step.close(epoch=self.epoch))
        except StopIteration as end:
            self.reason = end.value
            return False
        except Exception as error:
            self.error = error  # Kept: a program may catch this exception, and continue.
            raise
        return True

    def _first_due(self) -> StepDue:
        ranks = self._owner.ranks
        self._measures.watch(self._objects, measured=self._measured)
        held = nn.ModuleList(each for each in self._objects.values() if isinstance(each, nn.Module))
        if self._finish_reason is not None or self.progress.finish_reason is not None:
            # No epoch is left that would call run.batches again.
            self.components |= {name: AsStored() for name in self._stored_of_this_rank() if name not in self.components}
        pending: dict[str, Component] = {_GRADIENTS: PendingGradients(self._measures)}
        self.components |= named_on(ranks, None, pending) | rng_components(ranks, held)
        self._is_same_everywhere = same_on_every_rank(self._objects)
        if self._record is not None:
            self.components |= self._record.components(self._objects)
        self.components[RESTORED] = RestoredValues(self.components)
        # Everything, the random streams last: the program may have changed any part of it so far.
        self._owner.restore(self.components)
        if ranks.is_leader:
            names, loaders = self.components.keys(), self._loaders.by_name
            self._outside = of_program(self._objects, loaders=loaders, components=names)
            self.components[UNTRACKED] = self._outside
        self._structure = structure_of_objects(self._objects)
        steps = self._steps = self._owner.begin(self)
        due = next(steps)
        if self._finish_reason is None:
            return due
        self.progress.finish_reason = self._finish_reason
        return steps.send(None)

    def _open(self, batch: SessionBatch | None) -> None:
        """Begin the step that is due."""
        assert self._due is not None
        try:
            self._step.open(self._due, batch, compare_state=not self._has_own_code_run)
        except Exception as error:
            self.error = error
            raise
