"""Converts a goal in epochs to steps, before the run buys capacity. The module imports torch."""

from __future__ import annotations

from segue.data.loader import Feed
from segue.data.sampled import SampledOrder
from segue.data.streams import seed_all, streams_kept
from segue.interop.initial_state import built
from segue.recipe import import_build
from segue.spec import RunSpec


def steps_of_epochs(spec: RunSpec, epochs: int) -> int:
    """Build the recipe on this machine, and return the number of steps in the first `epochs` epochs.

    At the end, the function restores the global random streams.

    Raises:
        SpecError: the run trains a program, whose epochs have no known length.
        RecipeError: the recipe cannot be built, or its data has no length.
        DataChangedError, DataUnreadableError: a file of the run's data has changed, or could not be read.
    """
    path = spec.recipe_path
    with streams_kept():
        seed_all(spec.seed)
        recipe = built(import_build(path), spec)
        order = Feed(recipe.data, recipe=path, seed=spec.seed).order
    # A sampler of the recipe's own may draw another number of batches in each epoch.
    draws = order.draws if isinstance(order, SampledOrder) else None
    batches = [order.batches_per_epoch if draws is None else len(draws.epoch(n).ends) for n in range(epochs)]
    return sum(-(-count // recipe.accumulate) for count in batches)
