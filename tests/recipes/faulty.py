"""Recipes that come back wrong: each loses one thing when it is built a second time (the marker file exists then)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from segue.recipe import Recipe
from segue.testing.recipes import tiny


class Forgetful:
    """Saves its state and does not take it back."""

    def __init__(self) -> None:
        self.values = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


class _Deaf:
    """A scheduler that does not listen to its saved state."""

    def __init__(self, inner: Any) -> None:
        self.step, self.state_dict = inner.step, inner.state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


def build(config: dict[str, Any]) -> Recipe:
    """Config: fault (which), marker (a file that exists from the second build on), raise_first_at (only without it)."""
    own = {"fault", "marker", "raise_first_at"}
    recipe = tiny({name: value for name, value in config.items() if name not in own})
    marker = Path(config["marker"])
    resumed = marker.exists()
    marker.touch()
    FAULTS[config["fault"]](recipe, resumed)
    recipe.after_step = _Raising(recipe.after_step, marker, config.get("raise_first_at"))
    return recipe


class _Raising:
    """Raises at a step, unless the run was built before: what it is made of is the same both times."""

    def __init__(self, inner: Any, marker: Path, raise_at: int | None) -> None:
        self._inner, self._again, self._raise_at = inner, marker.with_name(f"{marker.name}-raised"), raise_at

    def __call__(self, step: int) -> None:
        if self._raise_at is not None and step >= self._raise_at and not self._again.exists():
            self._again.touch()
            raise ArithmeticError("the recipe was told to raise here")
        self._inner(step)


def with_workers(config: dict[str, Any]) -> Recipe:
    """The tiny recipe with two data workers."""
    recipe = tiny(config)
    recipe.data = DataLoader(recipe.data.dataset, batch_size=32, shuffle=True, num_workers=2)
    return recipe


def leaves(config: dict[str, Any]) -> Recipe:
    """A recipe that ends the process in its third step."""
    recipe = tiny({})
    update, steps = recipe.after_step, iter(range(3))

    def after_step(step: int) -> None:
        update(step)
        if next(steps, None) is None:
            sys.exit("enough")

    recipe.after_step = after_step
    return recipe


def none(recipe: Recipe, resumed: bool) -> None:
    return


def optimizer_not_restored(recipe: Recipe, resumed: bool) -> None:
    if resumed:
        recipe.optimizer.load_state_dict = lambda state: None


def scheduler_not_restored(recipe: Recipe, resumed: bool) -> None:
    if resumed:
        recipe.scheduler = _Deaf(recipe.scheduler)


def batch_norm_not_restored(recipe: Recipe, resumed: bool) -> None:
    if resumed:
        load = recipe.model.load_state_dict
        recipe.model.load_state_dict = lambda state: load(
            {k: torch.zeros_like(v) if "running_mean" in k else v for k, v in state.items()}
        )


def extra_not_restored(recipe: Recipe, resumed: bool) -> None:
    forgetful = Forgetful()
    recipe.extra = {**recipe.extra, "forgetful": forgetful}
    update = recipe.after_step

    def after_step(step: int) -> None:
        forgetful.values += step
        update(step)

    recipe.after_step = after_step


def data_rows_changed(recipe: Recipe, resumed: bool) -> None:
    if resumed:
        recipe.data.dataset.tensors[0][::50] += 1.0


def dropout_changed(recipe: Recipe, resumed: bool) -> None:
    if resumed:
        recipe.model[3].p = 0.5


def unregistered_counter(recipe: Recipe, resumed: bool) -> None:
    """A curriculum in a Python variable that is not saved."""
    inner, calls = recipe.loss, [0]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return inner(model, batch) * (1 + calls[0] / 100)

    recipe.loss = loss


def weight_decay_changed(recipe: Recipe, resumed: bool) -> None:
    """The groups come back from the checkpoint; the code then sets its own value again at each step."""
    step = recipe.after_step

    def after_step(number: int) -> None:
        step(number)
        recipe.optimizer.param_groups[0]["weight_decay"] = 0.3 if resumed else 0.01

    recipe.after_step = after_step


FAULTS = {
    fault.__name__: fault
    for fault in (
        none,
        optimizer_not_restored,
        scheduler_not_restored,
        batch_norm_not_restored,
        extra_not_restored,
        data_rows_changed,
        dropout_changed,
        unregistered_counter,
        weight_decay_changed,
    )
}
