"""The tiny recipe with a state that its earlier runs did not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from segue.recipe import Recipe
from segue.testing.recipes import tiny


class Counter:
    """Counts steps."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def with_counter(config: dict[str, Any]) -> Recipe:
    recipe, counter = tiny(config), Counter()

    def after_step(step: int) -> None:
        assert recipe.after_step is not None
        recipe.after_step(step)
        counter.count += 1

    return replace(recipe, after_step=after_step, extra={**recipe.extra, "counter": counter})
