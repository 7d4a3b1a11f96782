"""A built recipe in training: the recipe's objects, its data from any position, and its training step.

Attempts and resume rehearsals use the same functions, so the result of a rehearsal is valid for the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Self

import torch

from segue.checkpoints.format.snapshot import Snapshot
from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.recipe_diff import UNTRACKED
from segue.continuity.state_marks import Marks, begin_marks
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.curves.curve_rows import NO_METRICS
from segue.data.config import config_with_data
from segue.data.loader import Feed, Group, grouped
from segue.data.streams import seed_all
from segue.errors import RecipeError
from segue.recipe import import_build
from segue.recipe_check import built_recipe
from segue.records import Finding, Notice, Skip, StateMark
from segue.spec import MOST_WITNESS_STEPS, RunSpec
from segue.trainer.ranks.collectives import Ranks, combined
from segue.trainer.ranks.ddp import bare, explained, parameter_norm, spread, spread_again
from segue.trainer.workloads.base import LateStep, StepDue, StepMade
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.opened_files import watch_opened_files
from segue.trainer.workloads.outside import of_recipe
from segue.trainer.workloads.placement import place, to_device
from segue.trainer.workloads.recipe_record import setup_components
from segue.trainer.workloads.schedulers import MetricSchedulers, check_schedulers, shared_metric
from segue.trainer.workloads.state import (
    EARLY_STOP,
    RNG_PREFIX,
    Stopper,
    changed_by_optimizer,
    components_of,
    marked_parts,
    restore_all,
    same_on_every_rank,
    unchanged,
)
from segue.trainer.workloads.steps.own_step import are_held_in_order, held_by_optimizers
from segue.trainer.workloads.steps.step import ParameterOrder, begin_step
from segue.trainer.workloads.steps.step_result import StepBegun, row_of
from segue.trainer.workloads.structure import regrouped, structure_of

log = logging.getLogger(__name__)


class LiveRecipe:
    """The live objects of a recipe in this process."""

    def __init__(self, spec: RunSpec, *, device: torch.device, ranks: Ranks, skips: Collection[Skip] = ()) -> None:
        """Seed every random generator, then build the recipe on its device, with the data at position 0.

        Raises:
            RecipeError: the recipe does not exist, or the built objects cannot be trained.
            DataChangedError, DataUnreadableError: a data file of the run has changed or could not be read.
        """
        watch_opened_files()
        build = import_build(spec.recipe_path)
        config = config_with_data(spec)  # Before the seeding, because a network read may draw.
        seed_all(spec.seed)
        self.recipe = built_recipe(build, config)
        if self.recipe.step is not None and ranks.count > 1:
            why = f"its own step cannot be split over {ranks.count} ranks."
            fix = "train with ranks = 1, or return a loss and leave the step to segue."
            raise RecipeError(recipe=spec.recipe_path, why=why, fix=fix)
        place(self.recipe, device)
        self.progress = Progress()
        self.feed = Feed(
            self.recipe.data,
            recipe=spec.recipe_path,
            seed=spec.seed,
            rank=ranks.rank,
            world_size=ranks.count,
            skips=tuple(skips),
        )
        self.components: dict[str, Component] = components_of(
            self.recipe, self.progress, name=spec.recipe_path, ranks=ranks, device=device
        )
        self._structure = structure_of(self.recipe)
        self.components |= regrouped(self.recipe, self.components)
        self.components |= setup_components(
            self.recipe, self.feed, self.progress, build=build, config=spec.config, state=self.components
        )
        self.outside = of_recipe(self.recipe, build=build) if ranks.is_leader else None
        if self.outside is not None:
            self.components[UNTRACKED] = self.outside
        self._name, self._device, self._ranks = spec.recipe_path, device, ranks
        self.is_same_everywhere = same_on_every_rank(self.recipe)
        self._order = ParameterOrder()
        self._begin: Callable[..., StepBegun] = (
            explained(begin_step, recipe=spec.recipe_path) if ranks.count > 1 else begin_step
        )
        self._drawn: Iterator[Group] = iter(())
        self._evaluated: tuple[int, float] | None = None
        """The newest evaluated step, and the metric of this step."""
        self.changed_between_steps: set[str] = set()
        """Names of state parts that `evaluate` or `on_epoch` has changed."""
        stopper = self.components.get(EARLY_STOP)
        self._stopper = stopper if isinstance(stopper, Stopper) else None
        self._metric_schedulers = MetricSchedulers(self.recipe, ranks)
        check_schedulers(self.recipe, name=spec.recipe_path, steps=spec.steps, steps_per_epoch=self.steps_per_epoch)

    @property
    def depends_on_order_of_sums(self) -> bool:
        """Whether the gradient norm changes if it is summed in the model's order instead of by parameter group."""
        return not are_held_in_order(self.recipe, bare(self.recipe.model))

    def restore(self, snapshot: Snapshot) -> Self:
        """Restore the live objects from a checkpoint, with the random streams last."""
        restore_all(self.components, snapshot)
        return self

    def spread(self) -> None:
        """Distribute the model over the ranks. The restore must come first: it decides which parameters are trained.

        Raises:
            RecipeError: the recipe itself has distributed the model in an unsupported way.
        """
        self.recipe = spread(self.recipe, self._ranks, self._device, name=self._name)

    @property
    def has_metric(self) -> bool:
        return self.recipe.evaluate is not None

    @property
    def is_metric_known(self) -> bool:
        return self._evaluated is not None and self._evaluated[0] == self.progress.step

    is_save_of_this_step, can_save = False, True

    def wants_save(self, step: int) -> bool:
        return False

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        return self.recipe.on_notice

    @property
    def epoch(self) -> int:
        return self.feed.order.epoch_of(self.progress.samples_seen)

    def steps_to_epoch(self, epoch: int) -> float:
        order = self.feed.order
        epochs = epoch - self.progress.samples_seen / order.samples_per_epoch
        return epochs * order.batches_per_epoch / self.recipe.accumulate

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch."""
        return -(-self.feed.order.batches_per_epoch // self.recipe.accumulate)

    def begin(self, *, is_resumed: bool) -> None:
        """Prepare for steps from the current position on. If the model was not restored, it is put into train mode."""
        if not is_resumed:
            self.recipe.model.train()
        self._drawn = self.groups()

    def evaluate(self) -> float:
        assert self.recipe.evaluate is not None
        if self._evaluated is not None and self._evaluated[0] == self.progress.step:
            return self._evaluated[1]
        model = bare(self.recipe.model)
        # The run must not change if the metric draws random numbers, or leaves the model in eval mode.
        with self._between_steps(), torch.no_grad():
            model.eval()
            return float(self.recipe.evaluate(model))

    def begin_marks(self) -> Marks:
        parts = marked_parts(self.components)
        return begin_marks({name: tree for name, tree in parts.items() if name not in self.changed_between_steps})

    def state_marks(self) -> dict[str, StateMark]:
        """Compute the marks of the state's parts, and wait for them."""
        return self.begin_marks()()

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        self._order.look_again()  # A resume also reads the order again.
        return () if self.outside is None else self.outside.look(trees)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """A `with` block for user code that no replay runs. State that the block changes is not compared later."""
        before = self.state_marks()
        with unchanged(self.components):
            yield
        after = self.state_marks()
        self.changed_between_steps |= {name for name, mark in after.items() if before.get(name) != mark}

    def structure_changes(self) -> tuple[str, ...]:
        return self._structure.changes()

    def parameter_norm(self) -> float:
        return float(parameter_norm([parameter.detach() for parameter in held_by_optimizers(self.recipe)]))

    def changed_by_optimizer(self) -> frozenset[int]:
        return frozenset().union(*map(changed_by_optimizer, self.recipe.optimizers.values()))

    def make_step(self, due: StepDue) -> StepMade | LateStep:
        """Draw the next batches and make one optimizer step with them."""
        if self._ranks.own_time is not None:
            self._ranks.own_time.begin()
        group = next(self._drawn)
        prelude = self.prelude(group, with_fingerprints=due.needs_fingerprints)
        if due.needs_fingerprints:
            due.check(prelude)
        begun = self._begin_step(group, prelude, before_update=due.before_update, with_norms=due.needs_norms)
        if begun.is_late and due.may_be_late and not self._has_work_after(group):
            read, read_alone = (partial(self._made, group, prelude, begun, ranks) for ranks in (self._ranks, Ranks()))
            return LateStep(group.start, group.samples, read, read_alone)
        return self._made(group, prelude, begun, self._ranks)

    def _made(self, group: Group, prelude: Prelude, begun: StepBegun, ranks: Ranks) -> StepMade:
        """Return the completed step, with the numbers from these ranks."""
        row, metrics = self._read_step(group, prelude, begun, ranks)
        return StepMade(row, group.start, group.samples, group.ids, self.feed.order.epoch_of(group.start), metrics)

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Do the work after a counted step: make a due evaluation, check for early stopping, and end an epoch."""
        seen = self.progress.samples_seen
        ends_epoch = self.feed.order.is_epoch_over(seen)
        self.progress.owes_evaluation = self._evaluates_after(self.progress.step, seen)
        if not ends_epoch and not self.progress.owes_evaluation:
            return NO_METRICS
        self._ranks.require_vote()
        if ends_epoch and self.recipe.on_epoch is not None:
            with self._between_steps():
                self.recipe.on_epoch(self.feed.order.epoch_of(seen - 1))
        metrics = self.make_up(evaluating=evaluating)
        self._finish_after_epochs()
        return metrics

    def make_up(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """If the evaluation after the last step is missing, make it, and use its metric."""
        if not self.progress.owes_evaluation:
            return NO_METRICS
        with evaluating():
            metric = shared_metric(self.evaluate(), self._ranks)
        self.progress.owes_evaluation = False
        self._evaluated = (self.progress.step, metric)
        self._metric_schedulers.step(metric)
        if self._stopper is not None:
            self.progress.finish_reason = self._stopper.judge(metric)
        self._finish_after_epochs()
        return {"evaluate": metric}

    def _finish_after_epochs(self) -> None:
        order, seen, epochs = self.feed.order, self.progress.samples_seen, self.recipe.epochs
        if epochs is not None and order.is_epoch_over(seen) and order.epoch_of(seen - 1) + 1 >= epochs:
            self.progress.finish_reason = f"all {epochs} epochs are done"

    def _has_work_after(self, group: Group) -> bool:
        """Whether `finish_step` has work to do after the step with these batches."""
        step, samples_seen = self.progress.step + 1, group.start + group.samples
        return self.feed.order.is_epoch_over(samples_seen) or self._evaluates_after(step, samples_seen)

    def _evaluates_after(self, step: int, samples_seen: int) -> bool:
        """Whether `evaluate_every` requires an evaluation after this number of steps."""
        every = self.recipe.evaluate_every
        if every == "epoch":
            return self.feed.order.is_epoch_over(samples_seen)
        return every is not None and step % every == 0

    @property
    def awaits_metric(self) -> bool:
        return self._metric_schedulers.is_owed

    def groups(self) -> Iterator[Group]:
        """Yield the batches of each step, from the current position on."""
        return grouped(self.feed, self.progress.samples_seen, count=self.recipe.accumulate)

    def left_out(self) -> frozenset[str]:
        """Fingerprints of the skipped batches near the current position."""
        order = self.feed.order
        starts = order.left_out_of_next(MOST_WITNESS_STEPS, samples_seen=self.progress.samples_seen)
        return frozenset(batch_fingerprint(order.batch(start)) for start in starts)

    def prelude(self, group: Group, *, with_fingerprints: bool = True) -> Prelude:
        """Return the inputs of the next step, with their fingerprints if `with_fingerprints` is True."""
        step = self.progress.step + 1
        if not with_fingerprints:
            return Prelude(step, "", "", None)
        streams = None
        if self._ranks.count == 1:
            held = {name: c.capture() for name, c in self.components.items() if name.startswith(RNG_PREFIX)}
            streams = streams_fingerprint(held)
        contents = group.contents[0] if len(group.contents) == 1 else group.contents
        return Prelude(step, batch_fingerprint(group.ids), input_fingerprint(contents), streams)

    def step(
        self,
        group: Group,
        prelude: Prelude,
        *,
        before_update: Callable[[], None] = lambda: None,
        with_norms: bool = True,
    ) -> tuple[StepRow, dict[str, float]]:
        """Make one optimizer step. Return the step's row, which is equal on every rank, and the parts of the loss."""
        begun = self._begin_step(group, prelude, before_update=before_update, with_norms=with_norms)
        return self._read_step(group, prelude, begun, self._ranks)

    def _begin_step(
        self, group: Group, prelude: Prelude, *, before_update: Callable[[], None], with_norms: bool
    ) -> StepBegun:
        self._metric_schedulers.make_up(self.evaluate)
        if self._ranks.count > 1:
            self.recipe = spread_again(self.recipe, self._device)
        return self._begin(
            self.recipe,
            [to_device(content, self._device) for content in group.contents],
            step=prelude.step,
            weights=group.weights,
            ends_epoch=self.feed.order.is_epoch_over(group.start + group.samples),
            before_update=before_update,
            with_norms=with_norms,
            order=self._order,
            own_time=self._ranks.own_time,
        )

    def _read_step(
        self, group: Group, prelude: Prelude, begun: StepBegun, ranks: Ranks
    ) -> tuple[StepRow, dict[str, float]]:
        result = begun.result or begun.read()
        if ranks.count == 1:
            return row_of(prelude, result.outcome), result.parts
        weight = sum(group.weights) / len(group.weights)
        outcome, (seen,) = combined(ranks, result.outcome, weight=weight, fingerprints=(prelude.input_fingerprint,))
        return row_of(prelude._replace(input_fingerprint=seen), outcome), result.parts

    def advance(self, start: int, count: int) -> None:
        """Move the position past a counted step."""
        if start != self.progress.samples_seen:
            log.warning("samples skipped from=%d to=%d", self.progress.samples_seen, start - 1)
        self.progress.step += 1
        self.progress.samples_seen = start + count
        self._structure.step_made()
        if self.recipe.by_metric:
            is_due = self._evaluates_after(self.progress.step, self.progress.samples_seen)
            self._metric_schedulers.step_made(is_evaluation_due=is_due)
