"""The recipes of the continuity benchmark: three small models with every kind of state that can be lost. `edited`
stands for an edit of the source between two attempts. The config stays the same, but `build` returns another result.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.continuity.data import Changes, GentlyAugmented, Samples, as_fetched, columns_of
from benchmarks.continuity.extras import Accumulator, Curriculum
from benchmarks.continuity.models import DigitsNet, FlightsNet, TextNet, hidden_warm_up
from segue.recipe import Recipe
from segue.testing.recipes import Average

log = logging.getLogger(__name__)

RECIPE = "benchmarks.continuity.recipes:build"
MODELS = ("flights", "digits", "text")
OPTIMIZERS = ("adamw", "sgd")
FEATURES: dict[str, frozenset[str]] = {
    "flights": frozenset({"flights", "batchnorm", "numbers"}),
    "digits": frozenset({"digits", "batchnorm", "numbers", "scaler", "classes"}),
    "text": frozenset({"text", "scaler", "classes"}),
    "adamw": frozenset({"adamw"}),
    "sgd": frozenset({"sgd"}),
}
"""Features of a model or an optimizer. A kind of fault may need some of these features."""
_LEARNING_RATES = {"adamw": {"flights": 3e-3, "digits": 3e-3, "text": 3e-3}}
_LEARNING_RATES["sgd"] = {"flights": 0.02, "digits": 0.03, "text": 0.1}
_EDITS: dict[str, Any] = {}


@dataclass(frozen=True)
class Settings:
    """All settings that a config or an edit of the source can change."""

    model: str = "flights"
    optimizer: str = "adamw"
    samples: int = 1500
    batch_size: int = 32
    drop_last: bool = True
    shuffle: bool = True
    workers: int = 0
    dropout: float = 0.1
    activation: str = "relu"
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    is_causal: bool = True
    frozen: bool = False
    label_smoothing: float = 0.05
    huber_delta: float = 1.0
    loss_factor: float = 1.0
    other_loss: bool = False
    """Whether the loss is another function, which regularises the outputs."""
    other_augmentation: bool = False
    is_autocast: bool = False
    clip: float | None = 0.5
    clip_each: float | None = None
    swapped_order: bool = False
    schedule: str = "cosine"
    warm_up_steps: int = 20
    milestones: tuple[int, ...] = ()
    double_schedule: bool = False
    ema_decay: float = 0.9
    has_average: bool = True
    calls_after_step: bool = True
    scaler_init: float = 256.0
    scaler_growth_interval: int = 100
    curriculum_at: int | None = None
    pause_seconds: float = 0.0
    noise: float = 0.1
    noise_probability: float = 0.5
    scale: float = 1.0
    inputs_every: int = 0
    targets_every: int = 0
    is_reversed: bool = False
    is_half: bool = False
    hidden: str | None = None
    """Unregistered state: model, loss, data, generator (affect training); log, timestamp, cache (do not)."""

    @property
    def changes(self) -> Changes:
        names = {field.name for field in fields(Changes)}
        return Changes(**{name: getattr(self, name) for name in names})


@contextmanager
def edited(**settings: Any) -> Iterator[None]:
    """In this `with` block, the source differs from the config."""
    _EDITS.update(settings)
    try:
        yield
    finally:
        _EDITS.clear()


def build(config: dict[str, Any]) -> Recipe:
    """Config: any of `Settings`."""
    settings = Settings(**(config | _EDITS))
    model = _model(settings)
    if settings.hidden == "model":
        hidden_warm_up(model)
    if settings.frozen:
        next(model.parameters()).requires_grad_(False)
    optimizer = _optimizer(model, settings)
    scheduler = _scheduler(optimizer, settings)
    average = Average(model, settings.ema_decay)
    accumulator, curriculum = Accumulator(model), Curriculum(settings.curriculum_at)
    extra: dict[str, Any] = {"accumulator": accumulator, "curriculum": curriculum}
    is_stepped_twice = settings.double_schedule
    if settings.has_average:
        extra["average"] = average

    def after_step(step: int) -> None:
        accumulator.update(step)
        curriculum.update(step)
        average.update(step)
        if is_stepped_twice:
            scheduler.step()

    return Recipe(
        model=model,
        optimizer=optimizer,
        data=DataLoader(
            _samples(settings),
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            num_workers=settings.workers,
            # A process of a pool would start them again, which takes longer than the whole resume.
            multiprocessing_context="fork" if settings.workers else None,
            collate_fn=as_fetched,
        ),
        loss=_loss(settings, curriculum),
        scheduler=scheduler,
        scaler=_scaler(settings),
        clip_grad_norm=settings.clip,
        extra=extra,
        after_step=after_step if settings.calls_after_step else None,
    )


def _model(settings: Settings) -> nn.Module:
    act: Callable[[], nn.Module] = {"relu": nn.ReLU, "gelu": nn.GELU}[settings.activation]
    norm = {"eps": settings.norm_eps}
    if settings.model == "text":
        return TextNet(dropout=settings.dropout, activation=act, is_causal=settings.is_causal, **norm)
    kind = FlightsNet if settings.model == "flights" else DigitsNet
    model: nn.Module = kind(dropout=settings.dropout, activation=act, momentum=settings.norm_momentum, **norm)
    return model


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if settings.swapped_order:
        one, other = equal_pair(parameters)
        parameters[one], parameters[other] = parameters[other], parameters[one]
    if settings.clip_each is not None:
        limit = settings.clip_each
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(lambda grad: grad.clamp(-limit, limit))  # type: ignore[no-untyped-call]
    rate = _LEARNING_RATES[settings.optimizer][settings.model]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=1e-3)


def equal_pair(parameters: list[nn.Parameter]) -> tuple[int, int]:
    """Positions of two matrices of the same shape. Every model of the benchmark has such a pair."""
    matrices = [n for n, parameter in enumerate(parameters) if parameter.ndim >= 2]
    pairs = ((a, b) for a in matrices for b in matrices if a < b and parameters[a].shape == parameters[b].shape)
    return next(pair for pair in pairs if parameters[pair[0]].numel() > 64)


def _scheduler(optimizer: torch.optim.Optimizer, settings: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    if settings.schedule == "milestones":
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=list(settings.milestones), gamma=0.7)
    if settings.schedule == "warm-up":
        steps = settings.warm_up_steps
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - math.exp(-(step + 1) / steps))
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)


def _scaler(settings: Settings) -> torch.amp.GradScaler | None:
    if "scaler" not in FEATURES[settings.model]:
        return None
    return torch.amp.GradScaler("cpu", init_scale=settings.scaler_init, growth_interval=settings.scaler_growth_interval)


def _samples(settings: Settings) -> Samples:
    kind = GentlyAugmented if settings.other_augmentation else Samples
    return kind(columns_of(settings.model, settings.samples), settings.changes)


def _loss(settings: Settings, curriculum: Curriculum) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A closure over only the values that it needs, so that a search does not find other settings in it."""
    plain = _plain_loss(settings)
    is_autocast, pause_seconds, factor = settings.is_autocast, settings.pause_seconds, settings.loss_factor

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if pause_seconds:
            time.sleep(pause_seconds)
        *inputs, targets = batch
        with torch.autocast("cpu", enabled=is_autocast):
            found = model(*inputs).float()
        return plain(found, targets) * (factor * curriculum.weight)

    def other_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        *inputs, targets = batch
        found = model(*inputs).float()
        value: torch.Tensor = plain(found, targets) * (factor * curriculum.weight) + 1e-3 * found.square().mean()
        return value

    chosen = other_loss if settings.other_loss else loss
    match settings.hidden:
        case "loss":
            return scaled_by_calls(chosen)
        case "log":
            return counted(chosen)
    return chosen


def _plain_loss(settings: Settings) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if settings.model == "flights":
        return nn.HuberLoss(delta=settings.huber_delta)
    entropy = nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)

    def of_classes(found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = entropy(found.reshape(-1, found.shape[-1]), targets.reshape(-1))
        return value

    return of_classes


def counted(loss: Callable[[nn.Module, Any], torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A loss that counts its calls for a log."""
    calls = 0

    def counting(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls % 1000 == 0:
            log.debug("the loss was called calls=%d", calls)
        return loss(model, batch)

    return counting


def scaled_by_calls(loss: Callable[[nn.Module, Any], torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
    """A loss that is scaled by the number of its calls."""
    calls = 0

    def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss(model, batch) * (1 + min(calls / 200, 1.0))

    return scaled
