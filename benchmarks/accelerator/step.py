"""Compares a step of about 5 ms in a whole attempt with the same step in a plain loop, in turn."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch

from benchmarks.accelerator import recipes
from benchmarks.accelerator.report import Figure
from benchmarks.continuity.tasks import workplace
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.data.streams import seed_all
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.spec import RunSpec

STEP_SECONDS = 0.005
_ROUNDS, _STEPS, _WARM_UP = 5, 240, 40


def measure_step(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """`size_bytes` is not used, because the state of this recipe is small."""
    logging.getLogger("segue").setLevel(logging.WARNING)
    config = _config(device)
    plain, ours = [], []
    for _ in range(_ROUNDS):
        plain.append(_plain(config, device))
        ours.append(_attempt(config, device))
    step, share = statistics.median(plain), statistics.median(ours) / statistics.median(plain) - 1
    yield Figure("plain step", 1000 * step, "ms")
    yield Figure("more than that in an attempt", 100 * share, "%", 1.0)


def _config(device: torch.device) -> dict[str, int]:
    """Find the batch size for which a step takes 5 ms on this machine."""
    config = {"width": 2048 if device.type == "cuda" else 64, "batch_size": 64}
    while config["batch_size"] < 2**15 and _plain(config, device) < 0.8 * STEP_SECONDS:
        config["batch_size"] *= 2
    return config


def _plain(config: dict[str, int], device: torch.device) -> float:
    """Seconds of a step in a typical loop, which reads the loss of every step one step later."""
    seed_all(0)
    recipe = recipes.steady(config)
    model = recipe.model.to(device)
    (optimizer,) = recipe.optimizers.values()
    recipes.TIMES.clear()
    loss = None
    for _, batch in zip(range(_STEPS), cycle(recipe.data), strict=False):
        inputs = [tensor.to(device, non_blocking=True) for tensor in batch]
        optimizer.zero_grad(set_to_none=True)
        now = recipe.loss(model, inputs)
        now.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss is not None:
            float(loss)
        loss = now.detach()
        recipes.TIMES.append(time.perf_counter())
    return _seconds_of_step()


def _attempt(config: dict[str, int], device: torch.device) -> float:
    # Not before: it loads torch's distributed parts.
    from segue.trainer.attempt import run_attempt

    recipes.TIMES.clear()
    with tempfile.TemporaryDirectory(prefix="segue-accelerator-", dir=workplace()) as folder:
        spec = RunSpec.parse(
            {
                "run_id": "steady",
                "recipe": "benchmarks.accelerator.recipes:steady",
                "config": config,
                "steps": _STEPS,
                "device": "auto" if device.type == "cuda" else "cpu",
                "store": {"url": str(Path(folder) / "store")},
                "checkpoints": {"every_steps": 100_000},
                "continuity": {"rehearsal": "off"},
            }
        )
        clock = SystemClock()
        runlog = open_run(spec, clock=clock)
        plan = decide_next(runlog, spec, clock=clock).plan
        assert plan is not None
        shards = InlineWriter([runlog.store])
        run_attempt(
            Assignment(spec=spec, plan=plan), runlog=runlog, board=NoticeBoard(clock), clock=clock, shards=shards
        )
    return _seconds_of_step()


def _seconds_of_step() -> float:
    times = recipes.TIMES[_WARM_UP:_STEPS]
    return (times[-1] - times[0]) / (len(times) - 1)
