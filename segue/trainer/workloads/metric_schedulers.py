"""Schedulers whose `step` takes a metric: each is stepped with the number of an evaluation, once."""

from __future__ import annotations

from collections.abc import Callable

from segue.recipe import Recipe
from segue.trainer.ranks.collectives import Ranks
from segue.user_objects import step_by_metric


class MetricSchedulers:
    """The schedulers of one recipe that take a metric.

    Evaluations are made between two steps; a replay only makes steps, and no evaluation. The missing evaluation is
    owed, and is made before the next step, whose learning rates depend on it.
    """

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self._schedulers = [each for name, each in recipe.schedulers.items() if name in recipe.by_metric]
        self._ranks = ranks
        self._is_owed = False

    @property
    def is_owed(self) -> bool:
        """Whether the next step must not be made before an evaluation."""
        return self._is_owed

    def step_made(self, *, is_evaluation_due: bool) -> None:
        """Record a step, and whether an evaluation follows it."""
        self._is_owed = is_evaluation_due and bool(self._schedulers)

    def step(self, metric: float) -> None:
        """Step the schedulers with the number of the evaluation that is due now."""
        self._is_owed = False
        for scheduler in self._schedulers:
            step_by_metric(scheduler, metric)

    def make_up(self, evaluate: Callable[[], float]) -> None:
        """Step the schedulers if a step is about to be made and they were not stepped since the last step."""
        if self._is_owed:
            self.step(shared_metric(evaluate(), self._ranks))


def shared_metric(metric: float, ranks: Ranks) -> float:
    """Rank 0's number, on every rank: learning rates and the end of the run must be the same on all of them."""
    return metric if ranks.count == 1 else float.fromhex(ranks.gather_texts(metric.hex())[0])
