"""Resumes that public projects got wrong, written as those projects had them: each spoils a tiny recipe."""

from __future__ import annotations

from collections.abc import Callable

from segue.recipe import Recipe
from segue.testing.recipes import tiny
from tests.recipes.public_bugs import of_models, of_optimizers, of_scalers_and_data
from tests.recipes.public_bugs.changes import Config

BUGS: dict[str, Callable[[Recipe, Config], None]] = {
    name: bug
    for module in (of_models, of_optimizers, of_scalers_and_data)
    for name, bug in vars(module).items()
    if getattr(bug, "__module__", "") == module.__name__ and not name.startswith("_")
}


def build(config: Config) -> Recipe:
    """Config: bug (which), marker (a file that exists from the second build on), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name not in {"bug", "marker"}})
    BUGS[config["bug"]](recipe, config)
    return recipe
