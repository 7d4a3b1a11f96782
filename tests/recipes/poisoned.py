"""Recipes whose numbers go bad on one sample, or once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from segue.data.loader import Feed
from segue.recipe import Recipe
from segue.testing.recipes import tiny
from tests.recipes.ranked import even

OWN = {"goes_bad", "sample", "marker", "fine_until_it_raised", "scaler", "workers", "notice_at_step", "unclipped"}
MARK = 99.0
"""By what a loss knows the bad sample: its first feature."""


def sample_at_step(step: int) -> int:
    """A sample that is in this step's batch of `build`, where nothing is left out."""
    recipe = build({"goes_bad": "never"})
    return int(Feed(recipe.data, recipe="build", seed=0).order.batch((step - 1) * 32)[0])


def build(config: dict[str, Any]) -> Recipe:
    """Config: goes_bad (how), sample (on which), marker (a file; for what happens once), scaler, workers,
    notice_at_step, unclipped, fine_until_it_raised (a file: it raises once, after step 19, and goes bad from then on).

    An epoch has 32 batches.
    """
    recipe = tiny({"samples": 1024} | {name: value for name, value in config.items() if name not in OWN})
    if "sample" in config:
        recipe.data.dataset.tensors[0][config["sample"], 0] = MARK
    if config.get("scaler"):
        recipe.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    if config.get("unclipped"):
        recipe.clip_grad_norm = None
    if config.get("workers"):
        # Trainers that the fork_server starts are daemons, which may have no children.
        multiprocessing.current_process()._config["daemon"] = False
        recipe.data = DataLoader(
            recipe.data.dataset,
            batch_size=32,
            shuffle=True,
            num_workers=config["workers"],
            multiprocessing_context="fork",  # The fork_server's way of starting processes would import torch for them.
        )
    goes_bad, inner, update = WAYS[config["goes_bad"]], recipe.loss, recipe.after_step
    marker, raised = (Path(config[name]) if name in config else None for name in ("marker", "fine_until_it_raised"))

    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = inner(model, batch)
        if not (batch[0][:, 0] == MARK).any() or (marker is not None and marker.exists()):
            return found
        if raised is not None and not raised.exists():
            return found
        if marker is not None:
            marker.touch()
        return goes_bad(found, model)

    def after_step(step: int) -> None:
        update(step)
        if step == 19 and raised is not None and not raised.exists():
            raised.touch()
            raise ArithmeticError("told to raise here")
        if step == config.get("notice_at_step"):
            os.kill(os.getpid(), signal.SIGTERM)

    recipe.loss, recipe.after_step = loss, after_step
    return recipe


def even_with_a_bad_sample(config: dict[str, Any]) -> Recipe:
    """The even recipe of several ranks with one sample that is not a number."""
    recipe = even(config)
    recipe.data.dataset.tensors[0][config["sample"]] = torch.nan
    return recipe


WAYS = {
    "never": lambda loss, model: loss,
    "loss": lambda loss, model: loss * torch.nan,
    # A square root at zero: its value is fine, its slope is not.
    "gradient": lambda loss, model: loss + (model[0].weight * 0).sum().sqrt(),
    "spike": lambda loss, model: loss * 1000,
}
