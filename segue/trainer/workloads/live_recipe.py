"""A recipe that was built and is being trained: its objects, its data from any position, and its step.

An attempt and a resume rehearsal use the same functions here, so a result of the rehearsal holds for the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Self

import torch

from segue.checkpoints.format.snapshot import Snapshot
from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.verdict import Prelude
from segue.data.loader import Batch, Feed, seed_all
from segue.recipe import built_recipe, import_build
from segue.records import Notice, Skip, WitnessRow
from segue.spec import MOST_WITNESS_STEPS, RunSpec
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.consensus import combined
from segue.trainer.ranks.ddp import bare, spread, spread_again
from segue.trainer.workloads.base import StepDue, StepMade
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.recipe_record import setup_components
from segue.trainer.workloads.state import RNG_PREFIX, changed_by_optimizer, components_of, restore_all, unchanged
from segue.trainer.workloads.step import do_step, to_device

log = logging.getLogger(__name__)


class LiveRecipe:
    """The objects of one training run in this process."""

    def __init__(self, spec: RunSpec, *, device: torch.device, ranks: Ranks, skips: Collection[Skip] = ()) -> None:
        """Seed every generator, then build the recipe on its device, with its data at position 0.

        Raises:
            RecipeError: there is no such recipe, or it builds something that cannot be trained.
        """
        build = import_build(spec.recipe_path)
        seed_all(spec.seed)
        self.recipe = built_recipe(build, spec.config)
        self.recipe.model.to(device)
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
            self.recipe, self.progress, name=spec.recipe_path, ranks=ranks
        )
        self.components |= setup_components(self.recipe, self.feed, self.progress, build=build, config=spec.config)
        self._name, self._device, self._ranks = spec.recipe_path, device, ranks
        self._drawn: Iterator[Batch] = iter(())

    @property
    def depends_on_order_of_sums(self) -> bool:
        """Whether the gradient norm by parameter group has other bits than the one by the model's order."""
        model = [id(parameter) for parameter in bare(self.recipe.model).parameters()]
        held = [id(parameter) for group in self.recipe.optimizer.param_groups for parameter in group["params"]]
        return held != [number for number in model if number in set(held)]

    def restore(self, snapshot: Snapshot) -> Self:
        """Put a checkpoint's state into the live objects, the random streams last."""
        restore_all(self.components, snapshot)
        return self

    def spread(self) -> None:
        """Spread the model over the ranks. Call it after the restore, which decides which parameters are trained.

        Raises:
            RecipeError: the recipe has already spread the model, in a way that is not supported.
        """
        self.recipe = spread(self.recipe, self._ranks, self._device, name=self._name)

    @property
    def has_metric(self) -> bool:
        return self.recipe.evaluate is not None

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        return self.recipe.on_notice

    @property
    def epoch(self) -> int:
        return self.feed.order.epoch_of(self.progress.samples_seen)

    def steps_to_epoch(self, epoch: int) -> float:
        order = self.feed.order
        return (epoch * order.samples_per_epoch - self.progress.samples_seen) / order.batch_size

    def begin(self, *, is_resumed: bool) -> None:
        """Be ready to make steps from the current position on. A model that was not restored is put into train mode."""
        if not is_resumed:
            self.recipe.model.train()
        self._drawn = self.batches()

    def evaluate(self) -> float:
        assert self.recipe.evaluate is not None
        model = bare(self.recipe.model)
        # A metric that draws random numbers, or leaves the model in eval mode, must not change the run.
        with unchanged(self.components), torch.no_grad():
            model.eval()
            return float(self.recipe.evaluate(model))

    def changed_by_optimizer(self) -> frozenset[int]:
        return changed_by_optimizer(self.recipe.optimizer)

    def make_step(self, due: StepDue) -> StepMade:
        """Draw the next batch and do one optimizer step on it."""
        batch = next(self._drawn)
        prelude = self.prelude(batch, with_fingerprints=due.needs_fingerprints)
        due.check(prelude)
        row = self.step(batch, prelude, before_update=due.before_update)
        return StepMade(row, batch.start, len(batch.ids), batch.ids, self.feed.order.epoch_of(batch.start))

    def batches(self) -> Iterator[Batch]:
        """The batches from the current position on."""
        return self.feed.batches(self.progress.samples_seen)

    def left_out(self) -> frozenset[str]:
        """Fingerprints of the batches near the current position that are skipped."""
        order = self.feed.order
        starts = order.left_out_of_next(MOST_WITNESS_STEPS, samples_seen=self.progress.samples_seen)
        return frozenset(batch_fingerprint(order.batch(start)) for start in starts)

    def prelude(self, batch: Batch, *, with_fingerprints: bool = True) -> Prelude:
        """What the next step reads. Only rows that are witnesses, or are compared with one, need fingerprints."""
        step = self.progress.step + 1
        if not with_fingerprints:
            return Prelude(step, "", "", None)
        streams = None
        if self._ranks.count == 1:
            held = {name: c.capture() for name, c in self.components.items() if name.startswith(RNG_PREFIX)}
            streams = streams_fingerprint(held)
        return Prelude(step, batch_fingerprint(batch.ids), input_fingerprint(batch.content), streams)

    def step(self, batch: Batch, prelude: Prelude, *, before_update: Callable[[], None] = lambda: None) -> WitnessRow:
        """Do one optimizer step; return its row, the same on every rank. The position does not change."""
        self.recipe = spread_again(self.recipe, self._device)
        outcome = do_step(
            self.recipe,
            to_device(batch.content, self._device),
            step=prelude.step,
            weight=batch.weight,
            before_update=before_update,
        )
        outcome, seen = combined(self._ranks, outcome, weight=batch.weight, fingerprint=prelude.input_fingerprint)
        return WitnessRow(**(prelude._asdict() | {"input_fingerprint": seen}), **outcome._asdict())

    def advance(self, start: int, count: int) -> None:
        """Move the position past a step that counts."""
        if start != self.progress.samples_seen:
            log.warning("samples skipped from=%d to=%d", self.progress.samples_seen, start - 1)
        self.progress.step += 1
        self.progress.samples_seen = start + count
