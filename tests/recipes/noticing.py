"""A recipe with an `on_notice`, and with steps at which a test does something."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from segue.recipe import Recipe
from segue.records import Notice
from segue.testing.recipes import tiny

after: dict[int, Callable[[], None]] = {}
"""What a test in the same process does after a step."""
OWN = {"hook", "notes", "hold"}


def build(config: dict[str, Any]) -> Recipe:
    """Config: what `tiny` takes, and hook, notes, hold.

    hook (what `on_notice` does beyond its notes: raise, exit, hang, draw), notes (a file that gets a line for each
    call, with kind and rank), hold (a file: while it is there, a step does not end; `<hold>.reached` is made then).
    """
    recipe = tiny({name: value for name, value in config.items() if name not in OWN})
    inner_loss, inner_after = recipe.loss, recipe.after_step
    assert inner_after is not None
    hold = Path(config["hold"]) if "hold" in config else None

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        while hold is not None and hold.exists():
            hold.with_suffix(".reached").touch()
            time.sleep(0.01)
        return inner_loss(model, batch)

    def after_step(step: int) -> None:
        inner_after(step)
        after.get(step, lambda: None)()

    def on_notice(notice: Notice) -> None:
        if "notes" in config:
            with Path(config["notes"]).open("a") as file:
                file.write(f"{notice.kind} {notice.grace_seconds:.0f} rank{os.environ.get('RANK', '0')}\n")
        happen(config.get("hook"), recipe.model)

    recipe.loss, recipe.after_step, recipe.on_notice = loss, after_step, on_notice
    return recipe


def happen(what: str | None, model: nn.Module) -> None:
    match what:
        case "raise":
            raise ArithmeticError("raised by on_notice")
        case "exit":
            raise SystemExit(3)
        case "hang":
            time.sleep(600)
        case "draw":
            torch.rand(3)
            np.random.rand(3)  # The global streams are what must not change.
            random.random()
            model.eval()
