"""Sound scripts that count, time, print and store values for people. None of these values affects a step."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import Counter, defaultdict, deque
from typing import Any

import torch
from torch import nn

from benchmarks.continuity.scripts.base import Batch, Config, mse, net, recipe, samples, scratch, sound
from segue.recipe import Recipe

log = logging.getLogger(__name__)
steps_seen = 0
losses: list[float] = []
META: dict[str, Any] = {"best": None}


@sound("counter for a log")
def counter(config: Config) -> Recipe:
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls % 50 == 0:
            log.debug("calls=%d", calls)
        return mse(model, batch)

    return recipe(loss=loss)


@sound("module's counter and history for a log")
def module_history(config: Config) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        global steps_seen
        steps_seen += 1
        value = mse(model, batch)
        losses.append(value.item())
        META["best"] = min(losses)
        return value

    return recipe(loss=loss)


@sound("timer of steps")
def timer(config: Config) -> Recipe:
    times = {"last": time.perf_counter(), "total": 0.0}

    def after_step(step: int) -> None:
        now = time.perf_counter()
        times["total"] += now - times["last"]
        times["last"] = now

    return recipe(after_step=after_step)


@sound("meters of loss and speed")
def meters(config: Config) -> Recipe:
    class Meter:
        def __init__(self) -> None:
            self.value, self.sum, self.count = 0.0, 0.0, 0

        def update(self, value: float) -> None:
            self.value, self.sum, self.count = value, self.sum + value, self.count + 1

    table = {"loss": Meter(), "speed": Meter()}

    def after_step(step: int, metrics: dict[str, float]) -> None:
        table["loss"].update(metrics["loss"])
        table["speed"].update(1 / (time.time() % 1 + 1e-3))

    return recipe(after_step=after_step)


class _Bar:
    def __init__(self, total: int) -> None:
        self.n, self.total, self.started, self.text = 0, total, time.time(), ""

    def update(self, n: int = 1) -> None:
        self.n += n
        self.text = f"{self.n}/{self.total} {time.time() - self.started:.1f}s"


@sound("progress bar")
def progress_bar(config: Config) -> Recipe:
    bar = _Bar(1000)
    return recipe(after_step=lambda step: bar.update())


@sound("open log file")
def log_file(config: Config) -> Recipe:
    file = scratch("train.log").open("a", encoding="utf-8")

    def after_step(step: int) -> None:
        file.write(f"{step} {time.time()}\n")
        file.flush()

    made = recipe(after_step=after_step)
    weakref.finalize(made, file.close)  # Some tests make many recipes in one process.
    return made


@sound("CSV of results on disk")
def results_file(config: Config) -> Recipe:
    path = scratch("results.csv")

    def after_step(step: int, metrics: dict[str, float]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{step},{metrics['loss']}\n")

    return recipe(after_step=after_step)


@sound("gradients kept for a log")
def kept_gradients(config: Config) -> Recipe:
    kept: dict[str, torch.Tensor] = {}

    def after_step(step: int) -> None:
        for name, parameter in made.model.named_parameters():
            if parameter.grad is not None:
                kept[name] = parameter.grad.detach().clone()

    made = recipe(after_step=after_step)
    return made


@sound("histogram of activations by a hook")
def observing_hook(config: Config) -> Recipe:
    model = net()
    seen: defaultdict[str, list[float]] = defaultdict(list)

    def observe(module: nn.Module, given: Any, found: torch.Tensor) -> None:
        seen[type(module).__name__].append(found.detach().abs().mean().item())

    for module in model:
        module.register_forward_hook(observe)
    return recipe(model)


@sound("gradient norms by hooks of parameters")
def observing_parameter_hooks(config: Config) -> Recipe:
    model, norms = net(), Counter[str]()

    def observer(name: str) -> Any:
        def observe(grad: torch.Tensor) -> None:
            norms[name] += float(grad.norm())

        return observe

    for name, parameter in model.named_parameters():
        parameter.register_hook(observer(name))  # type: ignore[no-untyped-call]
    return recipe(model)


@sound("counter of a model's calls")
def counting_model(config: Config) -> Recipe:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls, self.last_shape = net(), 0, ()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last_shape = tuple(x.shape)
            found: torch.Tensor = self.body(x)
            return found

    return recipe(Net())


@sound("last predictions kept for a plot")
def kept_predictions(config: Config) -> Recipe:
    recent: deque[torch.Tensor] = deque(maxlen=10)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found = model(batch[0])
        recent.append(found.detach().clone())
        return nn.functional.mse_loss(found, batch[1])

    return recipe(loss=loss)


@sound("profiler around a loss")
def profiled(config: Config) -> Recipe:
    spent: dict[str, float] = {}

    def timed(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[function.__name__] = spent.get(function.__name__, 0.0) + time.perf_counter() - started

        return inner

    return recipe(loss=timed(mse))


@sound("best metric that only a log shows")
def best_metric(config: Config) -> Recipe:
    x, y = samples()
    best = {"metric": float("inf"), "at": 0}

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            value = float(nn.functional.mse_loss(model(x), y))
        if value < best["metric"]:
            best["metric"], best["at"] = value, best["at"] + 1
        return value

    return recipe(evaluate=evaluate)


@sound("number of evaluations for a log")
def counted_evaluations(config: Config) -> Recipe:
    x, y = samples()
    state = {"evaluations": 0, "seconds": 0.0}

    def evaluate(model: nn.Module) -> float:
        state["evaluations"] += 1
        state["seconds"] += time.time() % 1
        with torch.no_grad():
            return float(nn.functional.l1_loss(model(x), y))

    return recipe(evaluate=evaluate, evaluate_every=10)


@sound("samples seen, by class, for a log")
def counted_samples(config: Config) -> Recipe:
    class Collate:
        def __init__(self) -> None:
            self.batches, self.bytes = 0, 0

        def __call__(self, rows: list[Any]) -> list[torch.Tensor]:
            x, y = (torch.stack(column) for column in zip(*rows, strict=True))
            self.batches += 1
            self.bytes += x.nbytes
            return [x, y]

    from benchmarks.continuity.scripts.base import loader

    return recipe(data=loader(collate_fn=Collate()))


@sound("class attribute that counts instances")
def counted_instances(config: Config) -> Recipe:
    class Step:
        made = 0

        def __init__(self) -> None:
            type(self).made += 1

    def after_step(step: int) -> None:
        Step()

    return recipe(after_step=after_step)


@sound("queue of messages for a thread")
def message_queue(config: Config) -> Recipe:
    import queue

    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    return recipe(after_step=lambda step: messages.put(f"step {step} at {time.time()}"))
