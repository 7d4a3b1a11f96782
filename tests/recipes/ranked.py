"""Recipes for several ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from segue.checkpoints.saving.writer_client import ProcessWriter
from segue.recipe import Recipe
from segue.testing.recipes import tiny
from segue.trainer import safe_points, survivors
from segue.trainer.ranks.collectives import TorchRanks


def even(config: dict[str, Any]) -> Recipe:
    """No random draws and nothing that looks at a batch as a whole: any number of ranks computes the same.

    Config: sharded, pause_seconds, batch_size, width; and what one rank does at a step: `at` = [rank, step, what],
    where step 0 is the building and rank may be "all".
    """
    happen(config.get("at"), 0)
    samples, width = 96, int(config.get("width", 13))
    made = torch.Generator().manual_seed(7)
    features = torch.randn(samples, 8, generator=made)
    targets = features.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, 1))
    if config.get("sharded"):
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    pause_seconds = float(config.get("pause_seconds", 0))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(pause_seconds)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(TensorDataset(features, targets), batch_size=int(config.get("batch_size", 10)), shuffle=True),
        loss=loss,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=7),
        clip_grad_norm=1.0,
        after_step=partial(happen, config.get("at")),
    )


def noisy(config: dict[str, Any]) -> Recipe:
    """Dropout and batch norm: what a rank computes depends on its streams and its part of a batch.

    Config: `at`, as above; its step may be "save": when a save begins.
    """
    recipe = tiny({"batch_size": 30} | config)

    def after_step(step: int) -> None:
        assert recipe.after_step is not None
        recipe.after_step(step)
        happen(config.get("at"), step)

    def evaluate(model: nn.Module) -> float:
        assert recipe.evaluate is not None
        happen(config.get("at"), "save")
        return recipe.evaluate(model)

    return replace(recipe, after_step=after_step, evaluate=evaluate)


def interrupted(config: dict[str, Any]) -> Recipe:
    """The noisy recipe, in which something befalls one rank in the middle of a step.

    Its steps are short, but the copies for a commit after the loss of a rank are made as for long steps.

    Config: `at`, which happens in the last forward pass of its step, before the rank draws, or if `after_draws`, after
    it draws; `after_step`, which happens after the optimizer's step; accumulate; touches: a step whose forward pass
    changes weights; unreadable_after: a step after which a part of the state raises; stalls_writer: a rank that stores
    no part of a save.
    """
    survivors._MOST_SHARE = config.get("most_share", 1.0)
    recipe = noisy({key: value for key, value in config.items() if key != "at"})
    accumulate, made = int(config.get("accumulate", 1)), [0, 0]
    if config.get("stalls_writer") == int(os.environ.get("RANK", "0")):
        ProcessWriter.write = lambda *_: threading.Event().wait()  # type: ignore[assignment, method-assign]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made[1] += 1
        step = made[0] + 1 if made[1] == accumulate else None
        if step is not None and not config.get("after_draws"):
            happen(config.get("at"), step)
        if step is not None and step == config.get("touches"):
            next(model.parameters()).data.mul_(1.5)
        value = recipe.loss(model, batch)
        if step is not None and config.get("after_draws"):
            happen(config.get("at"), step)
        return value

    def after_step(step: int) -> None:
        made[:] = [step, 0]
        recipe.after_step(step)  # type: ignore[misc]
        happen(config.get("after_step"), step)
        if step == config.get("unreadable_after"):
            recipe.extra["average"].state_dict = lambda: 1 / 0

    extra = {**recipe.extra, "made": made}
    return replace(recipe, loss=loss, after_step=after_step, accumulate=accumulate, extra=extra)


def counted(config: dict[str, Any]) -> Recipe:
    """The even recipe with sharded weights. It counts the exchanges between the ranks.

    Config: as above; file: where rank 0 writes the number of exchanges after step `at_step`.
    """
    recipe, exchanges = even({"sharded": True, **config}), 0
    gather = TorchRanks.gather

    def counting(ranks: TorchRanks, data: bytes) -> list[bytes]:
        nonlocal exchanges
        exchanges += 1
        return gather(ranks, data)

    def after_step(step: int) -> None:
        if step == config["at_step"] and os.environ.get("RANK") == "0":
            Path(config["file"]).write_text(str(exchanges))

    TorchRanks.gather = counting  # type: ignore[method-assign]
    return replace(recipe, after_step=after_step)


def evaluated(config: dict[str, Any]) -> Recipe:
    """The even recipe with sharded weights, and with an evaluation that takes a while. No vote is due by time.

    Config: as above; every: evaluate_every; file: where rank 0 writes the step of each evaluation; notice_in: the step
    whose evaluation gives rank 0 a notice.
    """
    recipe, done = even({"sharded": True, **config}), [0]
    safe_points._LEAST_QUIET_SECONDS = safe_points._MOST_QUIET_SECONDS = 600.0

    def after_step(step: int) -> None:
        done[0] = step

    def evaluate(model: nn.Module) -> float:
        if os.environ.get("RANK") == "0":
            with Path(config["file"]).open("a") as file:
                file.write(f"{done[0]}\n")
            happen([0, config.get("notice_in"), "notice"], done[0])
        time.sleep(0.5)
        return float(done[0])

    return replace(recipe, after_step=after_step, evaluate=evaluate, evaluate_every=config["every"])


def unanswered(config: dict[str, Any]) -> Recipe:
    """The even recipe, in which ranks wait in a call that never returns, as for the accelerator of a rank that is gone.

    Config: rank; how: `raise` (it stays alive, because it cannot leave its group), `die`, or `late`, when it takes
    `seconds` for its first step, and the others wait in a collective.
    """
    recipe = even({})
    own, how = int(os.environ.get("RANK", "0")) == config["rank"], config["how"]

    def after_step(step: int) -> None:
        if how == "late":
            return
        if step == 15 and not own:
            threading.Event().wait()
        if step == 15 and how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 15:
            torch.distributed.destroy_process_group = threading.Event().wait  # type: ignore[assignment]
            raise ArithmeticError("told to raise here")

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if how == "late" and own and not seen:
            time.sleep(config["seconds"])
        seen.append(True)
        return recipe.loss(model, batch)

    seen: list[bool] = []
    return replace(recipe, after_step=after_step, loss=loss)


def forgetful(config: dict[str, Any]) -> Recipe:
    """The noisy recipe, which one rank does not take up as it was.

    Config: forgets = [rank, what], marker (a file that exists from the second time on that this rank builds it).
    """
    recipe = noisy(config)
    rank, what = config["forgets"]
    marker = Path(f"{config['marker']}-{os.environ.get('RANK', '0')}")
    was_built, _ = marker.exists(), marker.touch()
    if was_built and rank == int(os.environ.get("RANK", "0")):
        if what == "optimizer":
            recipe.optimizer.load_state_dict = lambda state: None
        if what == "data":
            recipe.data.dataset.tensors[0].add_(1.0)
        if what == "dropout":
            recipe.model[3].p = 0.5
    return recipe


def shard(model: nn.Sequential) -> None:
    if "RANK" not in os.environ:
        return
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)


def happen(where: Any, step: int | str) -> None:
    """What a test wants to befall one rank after one step."""
    if where is None:
        return
    rank, at_step, what = where
    if step != at_step or rank not in ("all", int(os.environ.get("RANK", "0"))):
        return
    if what == "raise":
        raise ArithmeticError("told to raise here")
    if what == "hang":
        while True:
            time.sleep(1)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "notice":
        os.kill(os.getpid(), signal.SIGTERM)
