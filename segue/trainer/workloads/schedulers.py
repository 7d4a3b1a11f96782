"""Checks of learning-rate schedulers against the length of the run. If a scheduler would end early, the check raises an
error. If a scheduler seems to count epochs, the check logs a warning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from segue.errors import RecipeError
from segue.recipe import Recipe
from segue.trainer.ranks.collectives import Ranks
from segue.user_objects import step_by_metric

log = logging.getLogger(__name__)


class MetricSchedulers:
    """Learning-rate schedulers of a recipe that take a metric.

    Evaluations are made between steps, but a replay makes only steps. If a replay leaves out an evaluation, the
    evaluation is made before the next step, because the next learning rates depend on the evaluation.
    """

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self._schedulers = [each for name, each in recipe.schedulers.items() if name in recipe.by_metric]
        self._ranks = ranks
        self._is_owed = False

    @property
    def is_owed(self) -> bool:
        """Whether an evaluation must be made before the next step."""
        return self._is_owed

    def step_made(self, *, is_evaluation_due: bool) -> None:
        """Record a step. `is_evaluation_due` states whether an evaluation follows the step."""
        self._is_owed = is_evaluation_due and bool(self._schedulers)

    def step(self, metric: float) -> None:
        """Step the schedulers with the metric of the due evaluation."""
        self._is_owed = False
        for scheduler in self._schedulers:
            step_by_metric(scheduler, metric)

    def make_up(self, evaluate: Callable[[], float]) -> None:
        """If the evaluation after the last step is missing, make it before the next step, and step the schedulers."""
        if self._is_owed:
            self.step(shared_metric(evaluate(), self._ranks))


def shared_metric(metric: float, ranks: Ranks) -> float:
    """Return rank 0's metric on every rank. Learning rates and the end of the run must be equal on all ranks."""
    return metric if ranks.count == 1 else float.fromhex(ranks.gather_texts(metric.hex())[0])


_LEAST_GAMMA = 0.99
"""Smallest plausible factor of an exponential decay per step. With a smaller factor, the learning rate is almost zero
after a few hundred steps."""


def check_schedulers(recipe: Recipe, *, name: str, steps: int, steps_per_epoch: int) -> None:
    """Refuse schedulers that the run would step too often, and warn about schedulers that seem to count epochs.

    Raises:
        RecipeError: the run would step a scheduler too often; the message names the scheduler and the number of steps.
    """
    refuse_short_schedules(recipe, name=name, steps=steps, steps_per_epoch=steps_per_epoch)
    if recipe.scheduler_every is None:
        for scheduler in recipe.schedulers.values():
            warn_of_epochs(scheduler, steps_per_epoch=steps_per_epoch)


def warn_of_epochs(scheduler: Any, *, steps_per_epoch: int) -> None:
    """Log a warning if the scheduler is stepped after each training step but would end its schedule within one
    epoch."""
    kind = type(scheduler)
    is_early = (
        (kind is StepLR and scheduler.step_size < steps_per_epoch)
        or (kind is MultiStepLR and min(scheduler.milestones, default=steps_per_epoch) < steps_per_epoch)
        or (kind is ExponentialLR and scheduler.gamma < _LEAST_GAMMA)
    )
    if is_early:
        log.warning(
            "the scheduler counts steps, but seems to be made for epochs; "
            "set scheduler_every to 'epoch' or to 'step' scheduler=%s steps_per_epoch=%d",
            kind.__name__,
            steps_per_epoch,
        )


def refuse_short_schedules(recipe: Recipe, *, name: str, steps: int, steps_per_epoch: int) -> None:
    """Refuse a scheduler that would raise an error during the run, because it is stepped too often.

    Raises:
        RecipeError: the run would step a scheduler too often; the message names the scheduler and the number of steps.
    """
    if recipe.epochs is not None:
        steps = min(steps, recipe.epochs * steps_per_epoch)
    unit = "epochs" if recipe.scheduler_every == "epoch" else "steps"
    calls = steps // steps_per_epoch if unit == "epochs" else steps
    for component, scheduler in recipe.schedulers.items():
        for each, reached in _reached(scheduler, calls):
            if isinstance(each, OneCycleLR) and reached > each.total_steps:
                number = f"the run steps it {reached} times, once for each of its {unit}"
                why = (
                    f"its {component} is a OneCycleLR of total_steps={each.total_steps}, but {number}: it would raise."
                )
                fix = f"give it total_steps={reached}, or train for fewer steps."
                raise RecipeError(recipe=name, why=why, fix=fix)


def _reached(scheduler: Any, calls: int) -> Iterator[tuple[Any, int]]:
    """Yield the scheduler, or each of its parts, with the count that it reaches after `calls` calls."""
    if isinstance(scheduler, ChainedScheduler):
        for each in scheduler._schedulers:
            yield from _reached(each, calls)
    elif isinstance(scheduler, SequentialLR):
        starts, ends = (0, *scheduler._milestones), (*scheduler._milestones, calls + 1)
        for each, start, end in zip(scheduler._schedulers, starts, ends, strict=True):
            yield from _reached(each, max(min(calls, end - 1) - start, 0))
    else:
        yield scheduler, calls
