"""A recipe, and a program, that are busy for long with something, once, in one phase of an attempt."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import segue
from segue.recipe import EarlyStop, Recipe
from segue.records import Notice
from segue.testing.recipes import tiny

OWN = {"where", "at_step", "seconds", "once", "evaluate_every", "plateau"}


class Busy:
    """Is busy the first time that it is asked for this phase and step.

    `<once>.reached` is made then, by another rank than the first with its number at the end.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config, self.step = config, 0

    def at(self, where: str, step: int = 0) -> None:
        config = self._config
        rank = os.environ.get("RANK", "0")
        reached = Path(config["once"] + ".reached" + (rank if rank != "0" else ""))
        if where == config["where"] and step == config.get("at_step", 0) and not reached.exists():
            reached.touch()
            time.sleep(config.get("seconds", 3600))


class SlowToStore:
    """State whose capture and restore take long."""

    def __init__(self, busy: Busy) -> None:
        self._busy, self._count = busy, 0

    def state_dict(self) -> dict[str, Any]:
        self._busy.at("save", self._busy.step)
        return {"count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._busy.at("restore")
        self._count = state_dict["count"]


def build(config: dict[str, Any]) -> Recipe:
    """Config: where and at_step (when it is busy), seconds, once (a path), evaluate_every, plateau, what `tiny` takes.

    where: build, build of a rehearsal, restore, loss, save, evaluate.
    """
    busy = Busy(config)
    busy.at("build")
    if "rehearsal_main" in sys.argv[0]:
        busy.at("build of a rehearsal")
    recipe = tiny({name: value for name, value in config.items() if name not in OWN})
    inner_loss, inner_after, inner_evaluate = recipe.loss, recipe.after_step, recipe.evaluate
    assert inner_after is not None
    assert inner_evaluate is not None

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        busy.at("loss", busy.step)
        return inner_loss(model, batch)

    def after_step(step: int) -> None:
        inner_after(step)
        busy.step = step

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():  # As an evaluation of averaged weights does, which puts the others back at its end.
            for parameter in model.parameters():
                parameter.mul_(2)
            busy.at("evaluate", busy.step)
            found = inner_evaluate(model)
            for parameter in model.parameters():
                parameter.mul_(0.5)
        return found

    def on_notice(notice: Notice) -> None:
        Path(config["once"] + ".told").write_text(f"{notice.kind} in {notice.phase}")

    recipe.loss, recipe.after_step, recipe.evaluate, recipe.on_notice = loss, after_step, evaluate, on_notice
    recipe.extra["slow"] = SlowToStore(busy)
    if "evaluate_every" in config:
        recipe.evaluate_every = config["evaluate_every"]
        recipe.early_stop = EarlyStop(patience=100, min_delta=1e6)
    if config.get("plateau"):
        recipe.scheduler = ReduceLROnPlateau(recipe.optimizer, factor=0.8, patience=0, threshold=1e6)
    return recipe


def program() -> None:
    """Arguments: where, at_step, once; where: build, step, evaluate."""
    where, at_step, once = sys.argv[1:]
    busy = Busy({"where": where, "at_step": int(at_step), "once": once})
    busy.at("build")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(40):
            busy.at("step", step)
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with run.evaluating():
                busy.at("evaluate", step)
            run.report(loss=loss)


if __name__ == "__main__":
    program()
